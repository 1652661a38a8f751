"""Requests of people: submitting, changing, asking what would be answered."""
