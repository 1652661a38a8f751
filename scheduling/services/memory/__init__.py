"""Memory and disk that workers need of a server."""
