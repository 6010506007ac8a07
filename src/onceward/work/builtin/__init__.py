"""Handlers that a preset brings along."""
