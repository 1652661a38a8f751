"""Changes of a job's workers."""
