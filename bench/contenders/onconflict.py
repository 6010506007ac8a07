"""FastAPI and INSERT … ON CONFLICT DO NOTHING: the usual answer, and a right one."""

from bench.contenders.handwritten import Program

__all__ = ["Program"]
