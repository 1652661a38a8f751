"""Reports that agents send and states that they are given."""
