"""Lina's evaluation, reproduced by the planners and the simulators of `moe/lina`."""
