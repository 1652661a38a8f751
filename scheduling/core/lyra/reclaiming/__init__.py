"""Lyra's reclaiming: which on-loan servers are returned."""
