"""A cluster's plans for a job with experts: numbers of workers, and the memory of each."""
