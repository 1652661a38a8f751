"""What the planner decided."""
