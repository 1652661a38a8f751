"""Placement: buddy blocks, repack, the smallest set of changes, and the forecast of forced moves."""
