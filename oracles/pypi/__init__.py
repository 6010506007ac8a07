"""Libraries from PyPI. Each is imported where it is asked, so that one may be missing."""
