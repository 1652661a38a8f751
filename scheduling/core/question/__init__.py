"""The input of a decision: the snapshot, its jobs and servers as arrays, and the checks that refuse bad
input."""
