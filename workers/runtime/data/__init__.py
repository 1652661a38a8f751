"""The samples of a rank, and their order."""
