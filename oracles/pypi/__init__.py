"""Verifiers from PyPI. Each library is imported when it is used, as it may not be installed."""
