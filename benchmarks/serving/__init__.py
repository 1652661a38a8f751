"""Serving through a day: what `benchmarks/long/serving_day.py` deploys, sends and does to it."""
