"""The cost of failures to a job, and the cost of protection against them."""
