"""How the ranks of a generation work together, decided for all of them before they start."""
