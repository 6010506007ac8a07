"""The benchmarks. Each module has `plan`, which returns the trials in the order they run."""
