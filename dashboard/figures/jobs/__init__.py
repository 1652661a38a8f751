"""Panels of a job."""
