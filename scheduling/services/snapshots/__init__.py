"""The planner's input."""
