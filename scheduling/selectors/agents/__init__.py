"""What agents fetch."""
