"""Lending: its rule, its forecasters, its orders on a living control plane, its tables."""
