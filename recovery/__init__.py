"""Gemini: state in the memory of peers, and recovery when machines fail (specification: Gemini, SOSP
2023)."""
