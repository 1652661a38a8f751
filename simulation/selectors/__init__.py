"""Queries for studies, their comparisons and files, and the choices on offer, used by pages and API."""
