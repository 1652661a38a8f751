"""Lina's schedule on real ranks: the order of their communication, exchanges in pieces, packing."""
