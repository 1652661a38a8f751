"""Gemini: state in the memory of peers, and recovery when machines fail (Gemini, SOSP 2023)."""
