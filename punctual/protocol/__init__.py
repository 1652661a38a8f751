"""Schemas and limits of messages between workers, node agents and the control plane (docs/protocols.md).

`limits` needs only the standard library, because workers import it; `storage` needs fsspec, the rest
pydantic.
"""
