"""Pages and their fragments. Views do not write: buttons call the REST API."""
