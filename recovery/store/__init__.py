"""The in-memory store of a node: a process of its own that outlives workers and agent (standard library
alone)."""
