"""Functions that several benchmarks train."""
