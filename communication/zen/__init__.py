"""Zen: the exact sum of sparse gradients on every worker, by balanced partitions."""
