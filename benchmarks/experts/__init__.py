"""Benchmarks of mixtures of experts."""
