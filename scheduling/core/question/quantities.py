"""Texts of durations, GPUs and memory for people."""

from __future__ import annotations

MEBIBYTE, GIBIBYTE = 1024**2, 1024**3
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def duration_text(seconds: float) -> str:
    """A duration in its two largest units: ``1 h 20 min``, ``8 min 35 s``, ``12.5 s``, ``-2 min``."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if round(seconds, 1) < 60:
        return f"{seconds:.3g} s"
    total = round(seconds)
    size, unit, part_size, part_unit = next(units for units in _UNITS if total >= units[0])
    whole, part = total // size, total % size // part_size
    return f"{whole} {unit} {part} {part_unit}" if part else f"{whole} {unit}"


def gpus_text(gpus: int) -> str:
    """``1 GPU``, ``4 GPUs``."""
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def gpu_hours_text(gpu_seconds: float) -> str:
    """GPU time in GPU hours: ``1.5 GPU hours``, ``12,345 GPU hours``."""
    hours = gpu_seconds / 3600.0
    if hours >= 100.0:
        return f"{round(hours):,} GPU hours"
    return "1 GPU hour" if hours == 1.0 else f"{hours:.3g} GPU hours"


def memory_text(size_bytes: float) -> str:
    """``1.5 GiB``, ``300 MiB``."""
    if size_bytes >= GIBIBYTE:
        return f"{size_bytes / GIBIBYTE:.3g} GiB"
    return f"{size_bytes / MEBIBYTE:.0f} MiB"
