"""Measures Onceward and its alternatives side by side: python -m bench --help."""
