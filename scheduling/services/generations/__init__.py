"""How a job's workers change."""
