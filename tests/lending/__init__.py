"""Lending: its rule, its forecasters, its orders on a running control plane, its tables."""
