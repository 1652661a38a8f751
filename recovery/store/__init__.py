"""The in-memory store of a node: a separate process that outlives workers and agent (standard library
only)."""
