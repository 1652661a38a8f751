"""How rows are read and written in bulk."""
