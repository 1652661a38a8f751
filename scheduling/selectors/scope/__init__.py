"""Permissions to see things."""
