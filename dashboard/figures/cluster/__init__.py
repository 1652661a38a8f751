"""Panels of the cluster."""
