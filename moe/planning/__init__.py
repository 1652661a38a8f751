"""What a cluster plans for a job with experts: numbers of workers, memory of each."""
