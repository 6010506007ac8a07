"""A proof by experiment: real processes, real databases, injected faults, and a full check."""
