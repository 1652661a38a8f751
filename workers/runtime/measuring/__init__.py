"""A worker's measurements of gradients, and their reports to the agent (docs/protocols.md 2.8)."""
