"""What the tests, the proof and the benchmarks share: databases, processes, a proxy."""
