"""Views: they parse, call one service or selector, and render."""
