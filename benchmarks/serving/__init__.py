"""Serving through a day: what `benchmarks/serving_day.py` deploys, sends and does to it."""
