"""Decides what a worker claims, and keeps its leases."""
