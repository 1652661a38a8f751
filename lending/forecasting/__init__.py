"""Forecasts of the inference cluster's usage in the next period, behind one interface (Lyra section 3.6)."""
