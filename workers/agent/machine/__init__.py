"""What this machine and its settings allow."""
