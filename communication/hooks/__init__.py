"""Execution of communication plans with torch and torch.distributed. Only workers import it."""
