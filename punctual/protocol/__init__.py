"""Shapes and bounds of what workers, node agents and the control plane say to each other (docs/protocols.md).

`limits` needs the standard library alone, as workers import it; `storage` needs fsspec, the rest pydantic.
"""
