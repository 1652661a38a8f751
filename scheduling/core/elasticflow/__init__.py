"""ElasticFlow: minimum satisfactory shares, admission, elastic allocation, and the pause budget."""
