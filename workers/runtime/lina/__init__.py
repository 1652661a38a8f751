"""Lina's schedule in training: order of communication, exchanges in pieces, packing."""
