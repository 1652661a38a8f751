"""Placement of the copies of each machine's state."""
