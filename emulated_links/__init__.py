"""Emulated links: the links of a declared server, shared by all traffic of its workers.

The agent, the training runtime and the in-memory store use them; standard library only.
"""
