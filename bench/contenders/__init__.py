"""The contenders. Each module is a program that `python -m bench.contenders` runs in one role."""
