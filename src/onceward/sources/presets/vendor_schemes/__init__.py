"""Schemes that a Signature template cannot express, one file per provider or shared rule."""
