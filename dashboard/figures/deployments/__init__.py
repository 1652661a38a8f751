"""Panels of a deployment."""
