"""Benchmarks of workers: pauses, recovery points, starts, emulated devices."""
