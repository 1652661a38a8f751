"""Reading deployments."""
