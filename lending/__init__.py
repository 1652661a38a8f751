"""Inference clusters and what they lend to training (Lyra sections 3.3, 3.4 and 3.6)."""
