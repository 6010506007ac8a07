"""The words of the design as frozen values; they need only the standard library."""
