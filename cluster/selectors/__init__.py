"""What is read of the cluster: its machines, and how they were used."""
