"""Gemini (SOSP 2023): its published figures beside what its algorithms give here."""
