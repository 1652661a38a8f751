"""Stands in for the package that holds the in-memory store."""
