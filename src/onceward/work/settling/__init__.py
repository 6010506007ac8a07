"""Settles attempts that raised an error: retry, fail, or postpone."""
