"""The training runtime: one process per GPU that trains a person's function under PyTorch DDP.

It talks to the node agent through one Unix socket and a folder (docs/protocols.md, section 3) and imports
nothing of the platform but the package `punctual`.
"""
