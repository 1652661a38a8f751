"""Communication plans of gradients, and the measurements they are made from."""
