"""A Parquet round trip preserves the run, and other folders are refused precisely."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.outcome import RunOutcome
from simulation.reports.parquet import ResultFileError, read_parquet, write_parquet
from simulation.reports.summary import summary
from tests.simulation.reports.outcomes import declined, outcome, random_outcome


def assert_same(first: RunOutcome, second: RunOutcome) -> None:
    """Assert that two runs are equal in every column and every other field."""
    for part in fields(RunOutcome):
        if part.name not in ("jobs", "cluster", "allocations"):
            assert getattr(first, part.name) == getattr(second, part.name), part.name
            continue
        table, expected = getattr(first, part.name), getattr(second, part.name)
        for column in fields(table):
            left, right = getattr(table, column.name), getattr(expected, column.name)
            if isinstance(left, tuple):
                assert left == right, column.name
                assert [type(value) for value in left] == [type(value) for value in right], column.name
            else:
                assert left.dtype == right.dtype, column.name
                np.testing.assert_array_equal(left, right, err_msg=column.name)


@given(jobs=st.integers(0, 40), instants=st.integers(0, 40), seed=st.integers(0, 2**16))
def test_parquet_round_trip_preserves_the_run(tmp_path_factory, jobs, instants, seed):
    run = random_outcome(
        jobs, instants, seed, broken={"job-1": "it was paused"}, notes=("a note", "another"), interrupted=True
    )
    folder = tmp_path_factory.mktemp("run") / "made" / "here"
    write_parquet(run, folder)
    assert_same(read_parquet(folder), run)


def test_the_summary_can_be_read_without_the_tables(tmp_path):
    run = random_outcome(30, 20)
    write_parquet(run, tmp_path)
    stored = (pq.read_schema(tmp_path / "jobs.parquet").metadata or {})[b"punctual.summary"]
    assert json.loads(stored) == json.loads(json.dumps(summary(run)))


def test_events_that_did_not_happen_are_nulls(tmp_path):
    write_parquet(outcome([declined("refused", 0, deadline=9)]), tmp_path)
    table = pq.read_table(tmp_path / "jobs.parquet")
    assert table.column("started_at").to_pylist() == [None]
    assert table.column("end").to_pylist() == ["declined"]


def test_second_write_replaces_the_run_and_leaves_no_other_files(tmp_path):
    write_parquet(random_outcome(30, 20), tmp_path)
    second = random_outcome(10, 5, seed=1)
    write_parquet(second, tmp_path)
    assert_same(read_parquet(tmp_path), second)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "allocations.parquet", "cluster.parquet", "jobs.parquet",
    ]  # fmt: skip


def test_files_of_two_runs_are_not_taken_for_one(tmp_path):
    run = random_outcome(3, 3)
    write_parquet(run, tmp_path / "one")
    write_parquet(replace(run, wall_seconds=9.0), tmp_path / "two")
    (tmp_path / "two" / "cluster.parquet").replace(tmp_path / "one" / "cluster.parquet")
    with pytest.raises(ResultFileError, match="not of one run"):
        read_parquet(tmp_path / "one")


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ResultFileError, match=r"jobs\.parquet is missing"):
        read_parquet(tmp_path)


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    write_parquet(random_outcome(3, 3), tmp_path)
    (tmp_path / "cluster.parquet").write_bytes(b"this is no table")
    with pytest.raises(ResultFileError, match=r"cluster\.parquet is not a readable Parquet file"):
        read_parquet(tmp_path)


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    for name in ("jobs", "cluster", "allocations"):
        pq.write_table(pa.table({"a": [1]}), tmp_path / f"{name}.parquet")
    with pytest.raises(ResultFileError, match="holds no simulated run"):
        read_parquet(tmp_path)


def test_an_unknown_job_end_is_refused_with_the_file(tmp_path):
    write_parquet(random_outcome(3, 3), tmp_path)
    path = tmp_path / "jobs.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("end")
    ended = table.set_column(place, "end", pa.array(["vanished"] * 3))
    pq.write_table(ended, path)
    with pytest.raises(ResultFileError, match="vanished"):
        read_parquet(tmp_path)


def test_an_incomplete_description_is_refused_with_the_file(tmp_path):
    write_parquet(random_outcome(3, 3), tmp_path)
    for path in tmp_path.iterdir():
        table = pq.read_table(path)
        metadata = {**table.schema.metadata, b"punctual.run": b'{"notes": []}'}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(ResultFileError, match=r"jobs\.parquet: what describes the run is not whole"):
        read_parquet(tmp_path)
