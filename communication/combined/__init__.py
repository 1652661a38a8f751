"""All planners of gradients asked at once: the fastest plan a job may use, beside those that it beats."""
