"""Decodes payloads, into models where handlers name them."""
