"""Decisions of the planner."""
