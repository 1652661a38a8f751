"""Zen's evaluation, computed again by the planners of `communication/zen`."""
