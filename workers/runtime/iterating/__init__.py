"""Iterations of training: the loop, what it checks, and the state at its boundary."""
