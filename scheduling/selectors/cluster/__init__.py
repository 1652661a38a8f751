"""Present state of the cluster."""
