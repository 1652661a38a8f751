"""Zen: sparse gradients that every worker ends up with the exact sum of, by balanced parts."""
