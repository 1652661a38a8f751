"""Stands in for the package that holds the runtime."""
