"""Emulated links: the links of a declared server, shared by all traffic of its workers.

Used by the agent and by the training runtime; standard library only.
"""
