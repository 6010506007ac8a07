"""Schemes that a template cannot say: one file for each sender, or two, that has its own rule."""
