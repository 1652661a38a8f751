"""Codecs as ranks run them, on processors and GPUs: one file each, one interface."""
