"""What is asked: the snapshot, what its jobs and servers are as columns and arrays, and what is refused at
the door."""
