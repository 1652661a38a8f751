"""Planners and reference rules for mixture-of-experts training: numpy alone, no torch and no Django."""
