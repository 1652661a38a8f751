"""The input of communication planners: a model's tensors, its placement, links and codecs."""
