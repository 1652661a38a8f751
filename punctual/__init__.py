"""Punctual: a training function and the time by which its result is needed.

Functions import from here; importing it needs neither PyTorch nor a server.
"""

from punctual.function import DataNotDeclaredError, TrainingFunction, artifact_path, data_path
from punctual.randomness import current_iteration, current_sample_indices, sample_generator, sample_rand

__all__ = [
    "DataNotDeclaredError",
    "TrainingFunction",
    "artifact_path",
    "current_iteration",
    "current_sample_indices",
    "data_path",
    "sample_generator",
    "sample_rand",
]
