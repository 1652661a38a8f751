"""Recovery points and recoveries."""
