"""Deployments: trained models that answer requests on inference servers."""
