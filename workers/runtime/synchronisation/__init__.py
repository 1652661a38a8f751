"""Gradient synchronisation among the ranks of a generation: its kinds, and the plan that names them."""
