"""Benchmarks that take minutes or need a running platform; each is run separately."""
