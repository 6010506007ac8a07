"""The proof: real processes, real databases, real faults, and a check of the whole history."""
