"""Stands in for the package that training functions import."""
