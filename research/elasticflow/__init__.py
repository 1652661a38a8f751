"""ElasticFlow's evaluation (section 6), simulated again beside what was published."""
