"""Emulated accelerators and links."""
