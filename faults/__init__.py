"""Faults on purpose: seeded schedules of them, how they are carried out, and what has to hold afterwards."""
