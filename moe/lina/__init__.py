"""Lina (ATC 2023): all-to-all goes before all-reduce in mixture-of-experts training."""
