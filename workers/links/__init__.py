"""Emulated links: what a declared server's links can carry, shared by all that its workers send.

Used by the agent and by the training runtime; needs the standard library alone.
"""
