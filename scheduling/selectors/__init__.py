"""Read queries. Every query that serves a person is limited to what that person may see."""
