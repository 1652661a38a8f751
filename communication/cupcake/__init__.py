"""Cupcake: gradients fused in consecutive groups, each compressed and sent at once (Wang, Rice 2023)."""
