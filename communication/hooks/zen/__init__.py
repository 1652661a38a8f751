"""Sparse gradients on ranks: execution of the schemes that Zen chooses from (chapter 3)."""
