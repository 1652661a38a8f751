"""Passes of the planner: what they decide and commit."""
