"""Adaptive gating (EMNLP 2023): two experts for the tokens whose gate is undecided, one for all others."""
