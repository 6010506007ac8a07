"""Decoders: one for each way to declare a payload's model, all with the same error messages."""
