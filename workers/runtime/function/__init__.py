"""Objects that a person's function builds and returns, and their checks."""
