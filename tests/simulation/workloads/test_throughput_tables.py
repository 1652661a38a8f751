"""Every published layout of throughput tables gives the same curves; gaps are no levels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation.workloads.device_model import DEVICES, synthetic_throughputs
from simulation.workloads.errors import TraceError
from simulation.workloads.throughputs import read_throughputs
from simulation.workloads.workload import ModelProfile
from tests.simulation.workloads.helpers import TABLE, table, write

LONG_HEADER = "gpu_type,model,global_batch_size,num_gpu,iterations_per_second"


def points(profile: ModelProfile, gpu_type: str) -> dict[int, float]:
    measured = profile.by_kind[gpu_type]
    return dict(zip(measured.gpus.tolist(), measured.iterations_per_second.tolist(), strict=True))


def test_empty_nan_and_zero_are_no_points(tmp_path: Path) -> None:
    resnet = read_throughputs(table(tmp_path)).profile(("resnet50", 128), ("A100", "T4"))
    assert points(resnet, "A100") == {1: 3.5, 2: 6.5, 8: 16.5}
    assert points(resnet, "T4") == {1: 0.5}


def test_wide_tables_give_the_same_profiles_as_the_long_one(tmp_path: Path) -> None:
    folder = tmp_path / "throughputs_A100"
    write(folder, "resnet50.csv", "global_batch_size,1,2,8,16,32,64\n128,3.5,6.5,16.5,0,nan,")
    write(
        folder,
        "bert.csv",
        "global_batch_size,1,2,4\n64,6.030661553957379,8.643477263279834,10.356284859349557\n",
    )
    wide, long = read_throughputs(folder), read_throughputs(table(tmp_path / "long"))
    for pair in (("resnet50", 128), ("bert", 64)):
        assert points(wide.profile(pair, ("A100",)), "A100") == points(long.profile(pair, ("A100",)), "A100")


def test_the_folder_above_wide_tables_gives_all_gpu_types(tmp_path: Path) -> None:
    write(tmp_path, "throughputs_A100/a.csv", "global_batch_size,1\n8,2\n")
    write(tmp_path, "throughputs_T4/a.csv", "global_batch_size,1\n8,1\n")
    assert read_throughputs(tmp_path).gpu_types == ("A100", "T4")


def test_gavels_table_leaves_out_jobs_spread_over_servers(tmp_path: Path) -> None:
    rows = (
        "v100,LM (batch size 5),4,80\nv100_unconsolidated,LM (batch size 5),8,90\nk80,LM (batch size 5),1,0\n"
    )
    write(tmp_path, "throughputs_isolated.csv", f"gpu_type,job_type,num_gpus,steps_per_s\n{rows}")
    read = read_throughputs(tmp_path)
    assert read.gpu_types == ("v100",)
    # Eight steps of 5 samples are one iteration of 40: the batch divides over every GPU count that was
    # measured.
    assert points(read.profile(("LM", 40), ("v100",)), "v100") == {4: 10.0}


def test_gavels_own_file_is_the_same_table(tmp_path: Path) -> None:
    rates = {
        "v100": {
            "('LM (batch size 5)', 4)": {"null": 80.0, "('A3C', 1)": [1.0, 2.0]},
            "('A3C', 1)": {"null": 7.0},
        }
    }
    write(tmp_path, "simulation_throughputs.json", json.dumps(rates))
    read = read_throughputs(tmp_path)
    assert points(read.profile(("LM", 40), ("v100",)), "v100") == {4: 10.0}
    assert set(read.points) == {("LM", 40), ("A3C", 8)}


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"v100": 3}', '{"v100": {"A3C": {"null": 3}}}', '{"v100": {"(1, 2": {}}}']
)
def test_a_file_that_is_not_gavels_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "simulation_throughputs.json", text)
    with pytest.raises(TraceError, match="not Gavel's file"):
        read_throughputs(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{LONG_HEADER}\nA100,bert,64,1,fast\n", "'fast' is not a throughput"),
        (f"{LONG_HEADER}\nA100,bert,64,1,-2\n", "cannot be"),
        (f"{LONG_HEADER}\nA100,bert,64,1,inf\n", "cannot be"),
        (f"{LONG_HEADER}\nA100,bert,64,0,2\n", "column num_gpu: 0 is too small"),
        (f"{LONG_HEADER}\nA100,bert,64,1,2\nA100,bert,64,1,2\n", "there twice"),
        (f"{LONG_HEADER}\nA100,bert,64,1,0\n", "no throughput above 0"),
        (
            "gpu_type,model,num_gpu\nA100,bert,1\n",
            "column global_batch_size, iterations_per_second is missing",
        ),
        ("global_batch_size,0\n8,1\n", "at least 1"),
        ("gpu_type,job_type,steps_per_s\nv100,A3C,3\n", "column num_gpus is missing"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, "throughput.csv", text)
    with pytest.raises(TraceError) as refused:
        read_throughputs(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_folder_without_tables_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no throughput table"):
        read_throughputs(tmp_path)
    with pytest.raises(TraceError, match="no such throughput table"):
        read_throughputs(tmp_path / "nowhere")


def test_gpu_types_are_found_whatever_their_letter_case(tmp_path: Path) -> None:
    read = read_throughputs(write(tmp_path, "throughput.csv", TABLE))
    assert read.gpu_type_named("a100") == "A100"
    with pytest.raises(TraceError, match="known are A100, T4"):
        read.gpu_type_named("H100")


def ceiling(curve: dict[int, float]) -> int:
    """The last count before the first that is not faster."""
    counts = sorted(curve)
    for count, following in zip(counts, counts[1:], strict=False):
        if curve[following] <= curve[count]:
            return count
    return counts[-1]


def test_built_in_curves_peak_at_different_gpu_counts() -> None:
    table = synthetic_throughputs()
    curves = [points(table.profile(pair, ("A100",)), "A100") for pair in table.measured_on("A100")]
    assert len(curves) == 14
    assert {ceiling(curve) for curve in curves} >= {8, 16, 32, 64}
    assert any(curve[max(curve)] < 0.9 * max(curve.values()) for curve in curves)
    assert all(
        curve[following] < 2.1 * curve[count] for curve in curves for count, following in [(2, 4), (4, 8)]
    )


def test_built_in_models_are_synthetic_and_exist_on_every_device() -> None:
    table = synthetic_throughputs()
    assert table.synthetic
    assert all(model.startswith("synthetic-") for model, _ in table.points)
    for gpu_type in DEVICES:
        assert len(table.measured_on(gpu_type)) == 14


def test_levels_that_exceed_device_memory_are_left_out() -> None:
    table = synthetic_throughputs(("T4",))
    assert min(points(table.profile(("synthetic-decoder", 256), ("T4",)), "T4")) > 1
