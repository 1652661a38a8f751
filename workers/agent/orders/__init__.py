"""What should be true on this server, and what was obeyed."""
