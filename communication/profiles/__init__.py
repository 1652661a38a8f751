"""What planners of communication are asked with: a model's tensors, where it trains, links and codecs."""
