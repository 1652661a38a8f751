"""What a simulated cluster is at an instant."""
