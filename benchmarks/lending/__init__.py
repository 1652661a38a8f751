"""What the benchmarks of lending on a running platform share."""
