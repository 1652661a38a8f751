"""Benchmarks of lending, and what those on a running platform share."""
