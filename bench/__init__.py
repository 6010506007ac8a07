"""Benchmarks: Onceward beside its alternatives, on one machine, in one run."""
