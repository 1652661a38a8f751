"""What a worker may see and do."""
