"""The platform under hostile and careless users, live: `make chaos`, a minute of it in `make test`
(README.md)."""
