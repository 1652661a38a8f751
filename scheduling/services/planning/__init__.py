"""What is decided and committed in a pass."""
