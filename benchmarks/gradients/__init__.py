"""Benchmarks of gradient planners, and what those of training under their plans share."""
