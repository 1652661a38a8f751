"""Gemini: state in the memory of peers, and what is done when machines die (specification: Gemini, SOSP
2023)."""
