"""Cupcake: gradients fused in consecutive groups, each compressed and sent as one (Wang, Rice 2023)."""
