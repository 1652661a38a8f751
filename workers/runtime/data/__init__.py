"""Which samples a rank gets."""
