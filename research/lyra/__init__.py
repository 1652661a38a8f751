"""Lyra's evaluation (section 3.7), simulated again beside what was published."""
