"""Transactions that change inference clusters."""
