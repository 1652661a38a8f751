"""State in shards: how it is cut over the ranks, written, handed over and loaded.

No module holds a whole state as bytes. A rank writes and serves its own shard, and loads a state tensor by
tensor.
"""
