"""How fast jobs are."""
