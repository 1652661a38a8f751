"""The transactions that change it."""
