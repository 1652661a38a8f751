"""Event streams for pages, the command line and agents, served by an ASGI process of their own."""
