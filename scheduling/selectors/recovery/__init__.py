"""How states are kept and found again."""
