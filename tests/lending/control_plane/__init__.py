"""Loans and reclaims beside jobs, with simulated agents."""
