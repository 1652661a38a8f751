"""Queries for machines and their usage."""
