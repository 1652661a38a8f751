"""What is brought to workers, and kept of them."""
