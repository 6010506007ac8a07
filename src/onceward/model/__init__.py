"""Frozen values for the terms of the design. They need only the standard library."""
