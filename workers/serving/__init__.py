"""The serving worker: the weights of a completed job behind HTTP (docs/protocols.md 2.12)."""
