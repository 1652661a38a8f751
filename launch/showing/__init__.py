"""What is shown on one machine."""
