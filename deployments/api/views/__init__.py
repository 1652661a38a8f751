"""Views of deployments."""
