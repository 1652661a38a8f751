"""What takes minutes or a running platform: each run by itself."""
