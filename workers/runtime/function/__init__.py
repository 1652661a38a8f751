"""What a person's function builds and returns."""
