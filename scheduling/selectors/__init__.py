"""Queries that read: every one that serves a person is scoped to what that person may see."""
