"""The contenders: each a program of its own, run as python -m bench.contenders."""
