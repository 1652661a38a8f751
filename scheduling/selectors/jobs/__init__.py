"""How jobs stand."""
