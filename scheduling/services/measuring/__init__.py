"""Measurement of scaling curves, and the choice of what to measure next."""
