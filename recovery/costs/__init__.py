"""What failures cost a job, and what protection against them costs it."""
