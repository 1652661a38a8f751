"""Nothing: this runtime keeps nothing in memory."""
