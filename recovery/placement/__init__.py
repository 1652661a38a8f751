"""On which machines the copies of each machine's state lie."""
