"""Usage of the inference cluster over time, which decides what it can lend."""
