"""Recovery points in memory: which rank reads each shard."""
