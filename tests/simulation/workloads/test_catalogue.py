"""Traces are found by name or path, with a matching throughput table and GPU type."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.workloads import public_traces
from simulation.workloads.catalogue import available_traces, load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.public_traces import PUBLIC_TRACES, VARIABLE
from simulation.workloads.synthetic import PROFILES
from tests.simulation.workloads.helpers import ITP_HEADER, ITP_ROW, TABLE, table, write


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A traces folder with one public trace, one of another name, and the small table."""
    folder = tmp_path / "traces_folder"
    write(folder, "elasticflow/traces/testbed_195job.csv", f"{ITP_HEADER}\n{ITP_ROW}\n")
    write(folder, "elasticflow/throughput.csv", TABLE)
    write(folder, "mine/monday.csv", "submission_time,duration,num_gpu\n0,3600,1\n")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no traces folder exist."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(public_traces, "DEFAULT_FOLDER", tmp_path / "nowhere")


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize(
    "name", ["testbed_195job", "elasticflow/traces/testbed_195job", "monday", "mine/monday.csv"]
)
def test_a_bare_name_is_looked_up_in_the_traces_folder(name: str) -> None:
    assert load_workload(name).jobs == 1


def test_the_table_beside_the_trace_is_used(traces: Path) -> None:
    jobs = load_workload("testbed_195job")
    assert str(traces / "elasticflow" / "throughput.csv") in jobs.source
    assert reference_gpu_type(jobs) == "A100"


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("testbed_195job", "microsoft/elasticflow-traces"),
        ("t4_195job", "pkusys/ElasticFlow"),
        ("pollux_6", "petuum/adaptdl"),
        ("gavel_2869ce", "stanford-futuredata/gavel"),
        ("philly_all", "msr-fiddle/philly-traces"),
    ],
)
def test_missing_public_trace_is_refused_with_its_source(name: str, original: str) -> None:
    with pytest.raises(TraceError) as refused:
        load_workload(name)
    assert original in str(refused.value)
    assert VARIABLE in str(refused.value)


@pytest.mark.usefixtures("nothing")
def test_a_public_trace_may_lie_anywhere_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "flat/cluster06.csv", f"{ITP_HEADER}\n{ITP_ROW}\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "flat"))
    assert load_workload("cluster06", throughputs=table(tmp_path)).jobs == 1


@pytest.mark.usefixtures("nothing")
def test_everything_synthetic_works_without_any_file() -> None:
    for name in PROFILES:
        assert load_workload(name, limit_jobs=5).jobs == 5


@pytest.mark.usefixtures("nothing")
def test_raw_jobs_draw_synthetic_models_where_there_is_no_table(tmp_path: Path) -> None:
    trace = write(tmp_path, "raw.csv", "submission_time,duration,num_gpu\n0,3600,1\n")
    jobs = load_workload(str(trace))
    assert jobs.profiles[0].model.startswith("synthetic-")
    assert any("synthetic" in note for note in jobs.notes)


@pytest.mark.usefixtures("nothing")
def test_named_models_without_a_table_ask_for_one(tmp_path: Path) -> None:
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\n{ITP_ROW}\n")
    with pytest.raises(TraceError, match="no throughput table .* --throughputs"):
        load_workload(str(trace))


@pytest.mark.usefixtures("nothing")
def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(TraceError, match="no trace is called 'nonsense'.*elasticflow.*testbed_195job"):
        load_workload("nonsense")


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("name", ["../secret", "/nowhere/at/all.csv", "", "mine/../mine/monday"])
def test_a_name_leads_to_no_file_outside_the_folder(name: str) -> None:
    with pytest.raises(TraceError):
        load_workload(name)


@pytest.mark.usefixtures("traces")
def test_without_paths_a_file_is_found_by_name_alone(tmp_path: Path) -> None:
    outside = write(tmp_path, "outside.csv", "submission_time,duration,num_gpu\n0,3600,1\n")
    assert load_workload(str(outside)).jobs == 1
    for name in (str(outside), "outside", "../outside"):
        with pytest.raises(TraceError):
            load_workload(name, allow_paths=False)
    assert load_workload("monday", allow_paths=False).jobs == 1
    assert load_workload("itp", allow_paths=False, limit_jobs=3).jobs == 3


def test_a_name_that_two_files_have_must_be_made_clear(traces: Path) -> None:
    write(traces, "yours/monday.csv", "submission_time,duration,num_gpu\n0,3600,1\n")
    with pytest.raises(TraceError, match="could be any of mine/monday, yours/monday"):
        load_workload("monday")


def test_a_variable_that_names_no_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(TraceError, match="is no folder"):
        load_workload("testbed_195job")


def itp_trace(folder: Path, model: str, batch: int) -> str:
    return str(write(folder, "itp.csv", f"{ITP_HEADER}\na,0,100,{model},50,{batch},1,20\n"))


def test_the_only_gpu_type_that_fits_is_chosen(tmp_path: Path) -> None:
    trace = itp_trace(tmp_path, "ncf", 32768)
    folder = table(tmp_path)
    assert reference_gpu_type(load_workload(trace, throughputs=folder)) == "T4"
    workload = load_workload(trace, throughputs=folder, gpu_type="A100")
    assert reference_gpu_type(workload) == "T4"
    assert any("T4 only: it takes the place of A100" in note for note in workload.notes)


def test_the_gpu_type_asked_for_is_taken_where_it_fits(tmp_path: Path) -> None:
    trace = itp_trace(tmp_path, "resnet50", 128)
    folder = table(tmp_path)
    assert reference_gpu_type(load_workload(trace, throughputs=folder)) == "A100"
    assert reference_gpu_type(load_workload(trace, throughputs=folder, gpu_type="t4")) == "T4"


def test_a_gpu_type_that_is_not_measured_lists_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not measured on 'H100'; choose one of A100, T4"):
        load_workload(itp_trace(tmp_path, "resnet50", 128), throughputs=table(tmp_path), gpu_type="H100")


def test_models_that_share_no_gpu_type_are_refused(tmp_path: Path) -> None:
    rows = "a,0,100,bert,50,64,1,20\nb,0,100,ncf,50,32768,1,20\n"
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\n{rows}")
    with pytest.raises(TraceError, match="no GPU type in .* has throughputs of all"):
        load_workload(str(trace), throughputs=table(tmp_path))


def test_the_first_jobs_by_submission_may_be_kept(tmp_path: Path) -> None:
    rows = "late,9,1,bert,50,64,1,20\nearly,1,1,bert,50,64,1,20\n"
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\n{rows}")
    assert load_workload(str(trace), throughputs=table(tmp_path), limit_jobs=1).job_id == ("early",)
    with pytest.raises(TraceError, match="at least 1"):
        load_workload(str(trace), throughputs=table(tmp_path), limit_jobs=0)


@pytest.mark.usefixtures("traces")
def test_trace_list_shows_availability() -> None:
    listed = {listing.name: listing for listing in available_traces()}
    assert set(PROFILES) <= set(listed)
    assert set(PUBLIC_TRACES) <= set(listed)
    assert listed["testbed_195job"].available
    assert listed["testbed_195job"].servers == 16
    assert not listed["cluster06"].available
    assert "microsoft/elasticflow-traces" in listed["cluster06"].original
    assert listed["mine/monday"].kind == "file"
    assert "elasticflow/throughput" not in listed
