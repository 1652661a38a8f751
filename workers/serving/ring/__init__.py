"""Layers that stream from host memory through a ring of device memory while they serve (MoESys)."""
