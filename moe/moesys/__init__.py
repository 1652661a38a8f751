"""MoESys (arXiv 2205.10034): mixtures of experts that are larger than device memory, and unequal tasks."""
