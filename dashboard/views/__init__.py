"""Pages and what refreshes them. Nothing here writes: buttons call the REST API."""
