"""What a worker measures of its gradients, and how it tells its agent (docs/protocols.md 2.8)."""
