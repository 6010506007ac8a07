"""Receiving: from a request to a durable receipt."""
