"""Handlers that run, and commit, within the request."""
