"""Which rank reads each shard of a recovery point."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.points.readers import choose_readers


@given(
    holders=st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=8),
    servers=st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_shards_are_read_locally_and_others_are_spread_evenly(holders, servers):
    readers = choose_readers(holders, servers)
    assert len(readers) == len(holders)
    assert all(0 <= reader < len(servers) for reader in readers)
    for have, reader in zip(holders, readers, strict=True):
        assert servers[reader] in have or not have & set(servers), "a rank beside it reads it"
    # A shard without a holder among the ranks never goes to a rank that reads two more than another.
    read = [readers.count(rank) for rank in range(len(servers))]
    far = {reader for have, reader in zip(holders, readers, strict=True) if not have & set(servers)}
    assert all(read[reader] <= min(read) + 1 for reader in far)


def test_staying_ranks_read_their_own_shards_and_share_the_rest():
    assert choose_readers([{10}, {11}, {12}, {13}], [10, 11, 12]) == [0, 1, 2, 0]
    assert choose_readers([{10}, {11}, {12}, {13}], [13, 20, 21, 22]) == [1, 2, 3, 0]
    assert choose_readers([{10}] * 4, [10] * 8) == [0, 1, 2, 3]
