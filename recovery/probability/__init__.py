"""How likely it is that memory suffices to recover, and what follows for replicas and spare servers."""
