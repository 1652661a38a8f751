"""Django's PostgreSQL backend with a health check that sends no statement."""
