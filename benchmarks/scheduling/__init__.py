"""Benchmarks of the decision core, of admission, and of submissions."""
