"""What is measured: each a list of steps, in the order in which they alternate."""
