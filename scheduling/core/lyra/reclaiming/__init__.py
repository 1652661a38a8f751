"""Lyra's reclaiming: which servers on loan go back."""
