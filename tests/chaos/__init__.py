"""The platform under hostile and careless users, live: `make hostile`, a minute of it in `make test`
(README.md)."""
