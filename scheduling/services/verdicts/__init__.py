"""Answers to jobs: verdicts, offers, quotas and incidents."""
