"""How gradients travel."""
