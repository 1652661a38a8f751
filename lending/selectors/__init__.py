"""Queries that read inference clusters."""
