"""What is answered: verdicts, offers, quotas and incidents."""
