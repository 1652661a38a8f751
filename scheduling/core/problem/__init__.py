"""One decision as arrays: its problem, its answer, and the sentences that explain verdicts."""
