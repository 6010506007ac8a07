"""The terms of the domain as frozen values. They need only the standard library."""
