"""What workers need of a server's memory and disk."""
