"""Reading and writing rows, single and in bulk."""
