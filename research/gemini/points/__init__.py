"""Recovery points in memory: the complete versions on each machine, and the source from which each machine
loads."""
