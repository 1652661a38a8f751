"""How workers are started and ended."""
