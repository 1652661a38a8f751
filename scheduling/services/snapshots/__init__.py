"""What a pass sees."""
