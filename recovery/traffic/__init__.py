"""Checkpoint traffic hidden in the network's idle time: spans, partition into chunks, transmission, modes."""
