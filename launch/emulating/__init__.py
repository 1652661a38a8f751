"""What the agents of one machine emulate: kinds of accelerators, and the links between servers."""
