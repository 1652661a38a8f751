"""What nodes report and are told."""
