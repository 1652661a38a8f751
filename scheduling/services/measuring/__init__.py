"""What curves rest on, and what is measured next."""
