"""Checkpoint traffic in idle network time: spans, partition into chunks, transmission, modes."""
