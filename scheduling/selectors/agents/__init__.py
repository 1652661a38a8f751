"""Answers to agents."""
