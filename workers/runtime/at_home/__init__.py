"""A function tried on one machine, without a platform."""
