"""Codecs for ranks, on processors and GPUs: one file each, one interface."""
