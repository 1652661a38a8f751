"""Kernels: how hot loops are compiled, and where their machine code is kept.

The decision core and the planners of communication use it; it imports nothing of other packages.
"""
