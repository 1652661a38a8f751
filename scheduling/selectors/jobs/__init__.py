"""State and history of jobs."""
