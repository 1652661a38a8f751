"""Unreadable traces are refused in one line that names file, line, column and valid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.workloads.catalogue import load_workload
from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from tests.simulation.workloads.helpers import ITP_HEADER, ITP_ROW, table, write

GENERIC = "job_id,submitted_at,iterations,model,global_batch_size,service_class,deadline_at,requested_gpus"


def refusal(tmp_path: Path, text: str, name: str = "trace.csv", **choices: object) -> str:
    """Return the one-line error of loading this text."""
    trace = write(tmp_path, name, text)
    choices.setdefault("throughputs", table(tmp_path))
    with pytest.raises(TraceError) as refused:
        load_workload(str(trace), **choices)  # type: ignore[arg-type]
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 1200
    return line


@pytest.mark.parametrize(
    ("row", "column", "says"),
    [
        ("a,zero,40285,bert,21347,64,4,3890", "submission_time", "'zero' is not a number"),
        ("a,-1,40285,bert,21347,64,4,3890", "submission_time", "at least 0"),
        ("a,0,-5,bert,21347,64,4,3890", "num_iteration", "must be above 0"),
        ("a,0,0,bert,21347,64,4,3890", "num_iteration", "must be above 0"),
        ("a,0,inf,bert,21347,64,4,3890", "num_iteration", "not a finite number"),
        ("a,0,10,bert,nan,64,4,3890", "deadline", "not a finite number"),
        ("a,0,10,bert,,64,4,3890", "deadline", "the value is missing"),
        ("a,0,10,bert,21347,64,0,3890", "num_gpu", "at least 1"),
        ("a,0,10,bert,21347,64,1.5,3890", "num_gpu", "not a whole number"),
        ("a,0,10,bert,21347,64,4,0", "duration", "must be above 0"),
        ("a,0,10,bert,21347,-64,4,10", "batch_size", "at least 1"),
        (",0,10,bert,21347,64,4,10", "job_id", "the value is missing"),
        ("6b2d9ccc,0,10,bert,21347,64,4,10", "job_id", "is there twice, first on line 2"),
        ("a,0,10,brt,21347,64,4,10", "model_name", "bert/64"),
        ("a,0,10,bert,21347,65,4,10", "model_name", "global batch 65"),
    ],
)
def test_a_bad_value_is_named_with_file_line_and_column(
    tmp_path: Path, row: str, column: str, says: str
) -> None:
    line = refusal(tmp_path, f"{ITP_HEADER}\n{ITP_ROW}\n\n{row}\n")
    assert str(tmp_path / "trace.csv") in line
    assert "line 4" in line
    assert f"column {column}:" in line
    assert says in line


def test_columns_are_named_as_they_are_in_the_file(tmp_path: Path) -> None:
    header = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration"
    assert "column iteration:" in refusal(tmp_path, f"{header}\na,0,x,bert,1,64,4,10\n")


def test_missing_column_is_named_with_columns_of_the_nearest_format(tmp_path: Path) -> None:
    header = ITP_HEADER.replace(",batch_size", "")
    line = refusal(tmp_path, f"{header}\na,0,1,bert,2,4,10\n", options=WorkloadOptions(format="elasticflow"))
    assert "column batch_size is missing" in line
    assert "submission_time or submit_time" in line


def test_missing_column_of_a_generic_trace_is_named(tmp_path: Path) -> None:
    line = refusal(tmp_path, GENERIC.replace(",requested_gpus", "") + "\na,0,1,bert,64,slo,5\n")
    assert "column requested_gpus is missing" in line
    assert "format generic" in line


def test_an_unknown_header_lists_the_known_formats(tmp_path: Path) -> None:
    line = refusal(tmp_path, "apples,pears\n1,2\n")
    assert "no known format" in line
    assert "generic" in line


def test_an_unknown_forced_format_lists_the_known_ones(tmp_path: Path) -> None:
    line = refusal(tmp_path, f"{ITP_HEADER}\n{ITP_ROW}\n", options=WorkloadOptions(format="excel"))
    assert "unknown trace format 'excel'" in line
    assert "philly" in line


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "the file is empty" in refusal(tmp_path, text)


def test_file_with_only_a_header_is_refused(tmp_path: Path) -> None:
    assert "no row below it" in refusal(tmp_path, ITP_HEADER + "\n")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not a text file"),
        (b"job_id,submission_time\n\0\0\0", "not a text file"),
        (b"\x1f\x8b\x08\0\0", "unpack it"),
        (b"PK\x03\x04\x14", "unpack it"),
    ],
)
def test_a_binary_file_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "picture.csv"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=says):
        load_workload(str(path), throughputs=table(tmp_path))


def test_a_row_of_another_length_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, f"{ITP_HEADER}\n{ITP_ROW}\na,b,c\n")
    assert "line 3: there are 3 values, but the header has 8 columns" in line


def test_a_doubled_column_is_refused(tmp_path: Path) -> None:
    assert "names duration twice" in refusal(tmp_path, f"{ITP_HEADER},duration\n{ITP_ROW},1\n")


def test_strange_values_stay_on_one_line_and_are_cut(tmp_path: Path) -> None:
    value = '"' + "x\n" * 500 + '"'
    line = refusal(tmp_path, f"{ITP_HEADER}\na,{value},1,bert,2,64,4,10\n")
    assert "..." in line


def test_spaces_byte_order_marks_and_carriage_returns_are_no_errors(tmp_path: Path) -> None:
    text = "\ufeff" + f"{ITP_HEADER}\r\n {ITP_ROW.replace(',', ' , ')}\r\n"
    trace = write(tmp_path, "trace.csv", text)
    assert load_workload(str(trace), throughputs=table(tmp_path)).job_id == ("6b2d9ccc",)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a,0,1,bert,64,gold,5,1", "unknown class 'gold'; known are slo, soft, best_effort"),
        ("a,0,1,bert,64,slo,,1", "a job of class slo needs a deadline"),
        ("a,0,1,bert,64,best_effort,5,1", "leave it empty"),
        ("a,0,1,bert,64,slo,2026-01-01,1", "is not a number"),
    ],
)
def test_a_generic_row_must_make_sense(tmp_path: Path, row: str, says: str) -> None:
    assert says in refusal(tmp_path, f"{GENERIC}\n{row}\n")


def test_a_philly_date_must_be_one(tmp_path: Path) -> None:
    line = refusal(tmp_path, "timestamp,duration,num_gpus,gpu_time,cluster\nyesterday,900,1,900,x\n")
    assert "column timestamp: 'yesterday' is not a time; 'YYYY-MM-DD HH:MM:SS' is expected" in line


def test_an_unknown_virtual_cluster_is_refused_with_the_known_names(tmp_path: Path) -> None:
    text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:00,900,1,900,abc\n"
    for names in ("xyz", "abc+xyz"):
        line = refusal(tmp_path, text, options=WorkloadOptions(virtual_cluster=names))
        assert "'xyz'; known are abc" in line


def test_trace_without_usable_jobs_is_refused_with_the_reason(tmp_path: Path) -> None:
    line = refusal(tmp_path, "submission_time,duration,num_gpu\n0,30,1\n")
    assert "no job is left: 1 jobs shorter than 600 s were left out" in line


def test_an_unknown_pollux_application_lists_the_known_ones(tmp_path: Path) -> None:
    line = refusal(tmp_path, "name,time,application,num_replicas,batch_size\na,0,gpt5,1,8\n")
    assert "'gpt5'; known are bert, cifar10" in line


def test_a_job_type_must_be_one(tmp_path: Path) -> None:
    line = refusal(tmp_path, "job_type,total_steps,arrival_time_s,num_gpus\nLM (batch size many),5,0,1\n")
    assert "'MODEL (batch size N)' is expected" in line


@pytest.mark.parametrize(
    "choices",
    [
        {"tightest": 0.0},
        {"tightest": 2.0, "loosest": 1.0},
        {"best_effort_share": 0.7, "soft_share": 0.7},
        {"best_effort_share": -0.1},
        {"jobs": 0},
        {"mean_interarrival_seconds": 0.0},
        {"shortest_seconds": -1.0},
    ],
)
def test_options_out_of_range_are_refused(choices: dict[str, float]) -> None:
    with pytest.raises(TraceError):
        WorkloadOptions(**choices)  # type: ignore[arg-type]
