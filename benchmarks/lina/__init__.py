"""Ranks for the benchmarks of Lina."""
