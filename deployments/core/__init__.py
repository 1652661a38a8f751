"""Decisions about deployments as pure functions: number and choice of servers, and the next replacement."""
