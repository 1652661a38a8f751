"""Event streams for pages, the command line and agents, served by a separate ASGI process."""
