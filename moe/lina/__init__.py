"""Lina (ATC 2023): all-to-all takes priority over all-reduce in mixture-of-experts training."""
