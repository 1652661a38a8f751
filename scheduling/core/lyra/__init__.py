"""Lyra: base and flexible demands, the knapsack, workers on servers of both kinds."""
