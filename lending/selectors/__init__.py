"""The queries that read it."""
