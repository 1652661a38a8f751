"""How the ranks of a generation come to the same gradients: kinds, and the plan that names them."""
