"""Lyra's scheduler: base and flexible demands, the knapsack, and worker placement on owned and on-loan
servers."""
