"""Free capacity over time, and what a job's plan takes of it."""
