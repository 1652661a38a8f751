"""The transactions that change deployments."""
