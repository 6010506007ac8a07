"""Mutation tests of the core: change one line at a time, and see whether a test kills the mutant.

``python -m mutants`` runs them; docs/mutants.md has the last result.
"""
