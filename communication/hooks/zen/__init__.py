"""Sparse gradients on ranks: the schemes that Zen chooses from, carried out with what travels (chapter 3)."""
