"""Calls to other systems, whose intent and outcome are committed."""
