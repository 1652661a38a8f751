"""ElasticFlow: minimum satisfactory shares, admission, elastic allocation, and what keeps a promise true."""
