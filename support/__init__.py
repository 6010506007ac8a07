"""Helpers that tests, benchmarks and the proof share: databases, processes, disks, a checker."""
