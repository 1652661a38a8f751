"""Lina's evaluation, reproduced: training, by the planners and the simulator of `moe/lina`."""
