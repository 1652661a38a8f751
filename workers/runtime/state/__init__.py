"""State in shards: how it is cut over the ranks, written, handed over and taken back.

Nothing here ever holds a whole state as bytes. A rank writes and serves its own shard, and takes a state
tensor by tensor.
"""
