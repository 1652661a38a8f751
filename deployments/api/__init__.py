"""The REST API of deployments."""
