"""Recovery points in memory: which versions are complete where, and from whom each machine loads."""
