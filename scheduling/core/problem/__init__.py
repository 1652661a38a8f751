"""One decision: what is to be decided, about whom, and how the answer is said."""
