"""What happens from outside."""
