"""What the cluster is and does now."""
