"""Carries communication plans out, by torch and torch.distributed. Workers alone load it."""
