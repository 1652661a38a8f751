"""Usage of an inference cluster: the synthetic day, series over time, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulation.inference.catalogue import available_usage, read_usage
from simulation.inference.daily_curve import DailyCurve, daily_usage
from simulation.inference.helios import DEMAND_CURVES
from simulation.inference.usage import UsageSeries, averaged
from simulation.workloads.errors import TraceError
from simulation.workloads.public_traces import VARIABLE
from tests.simulation.workloads.helpers import public_data, write

HOUR = 12
DAY = 24 * HOUR


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_synthetic_curve_has_the_published_statistics(seed: int) -> None:
    """Published statistics: mean 0.650, ratio of peak to trough 2.19, median step 0.0204."""
    series = daily_usage(DailyCurve(), seed=seed)
    assert series.expected is not None
    assert series.usage.size == 15 * DAY
    assert series.usage.mean() == pytest.approx(0.650, abs=0.002)
    assert series.expected.max() / series.expected.min() == pytest.approx(2.19, abs=0.01)
    assert np.median(np.abs(np.diff(series.usage))) == pytest.approx(0.0204, abs=0.001)
    assert series.usage.min() >= 0.40
    assert series.usage.max() <= 0.95


def test_synthetic_day_is_lowest_before_dawn_and_highest_at_night() -> None:
    expected = daily_usage(DailyCurve(days=1), seed=0).expected
    assert expected is not None
    assert expected.argmin() == 5 * HOUR
    assert (expected[20 * HOUR :] == expected.max()).all()
    assert (np.diff(expected[5 * HOUR : 20 * HOUR]) > 0).all()


def test_about_171_of_520_servers_can_be_lent_on_average() -> None:
    expected = daily_usage(DailyCurve(), seed=0).usage
    lendable = np.maximum(0, 520 - 11 - np.ceil(520 * expected))
    assert lendable.mean() == pytest.approx(171, abs=3)


def test_same_seed_gives_same_days_and_fewer_days_are_a_prefix() -> None:
    long, short, other = (
        read_usage(f"bursty:days={days},seed={seed}") for days, seed in ((4, 1), (2, 1), (2, 2))
    )
    assert (long.usage[: 2 * DAY] == short.usage).all()
    assert (short.usage != other.usage).any()
    assert (read_usage("daily", seed=3).usage == read_usage("daily:seed=3").usage).all()


def test_bursts_are_sudden_and_not_expected() -> None:
    calm, bursty = (
        daily_usage(DailyCurve(days=10, noise=0.0, bursts_per_day=rate), seed=5) for rate in (0.0, 4.0)
    )
    assert calm.expected is not None
    assert bursty.expected is None
    added = bursty.usage - calm.usage
    assert added.min() >= 0.0
    jumps = (np.diff(added) > 0.05).sum()
    assert 15 <= jumps <= 60


@example(1.0, 0.0, 0.0, 0.0, 2.2250738585e-313, 0)
@given(
    st.floats(0.01, 3.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.0, 0.1), st.floats(0.0, 20.0),
    st.integers(0, 2**31),
)  # fmt: skip
def test_any_curve_stays_a_share(
    days: float, trough: float, swing: float, noise: float, bursts: float, seed: int
) -> None:
    series = daily_usage(DailyCurve(days, trough, swing, noise, bursts), seed=seed)
    assert ((series.usage >= 0.0) & (series.usage <= 1.0)).all()
    if trough >= 0.40 and trough + swing <= 0.95:
        assert ((series.usage >= 0.40) & (series.usage <= 0.95)).all(), "the published range"


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_daily_curve_reaches_its_trough_and_peak(trough: float, swing: float) -> None:
    curve = DailyCurve(days=1.0, trough=trough, swing=swing, noise=0.0)
    usage = daily_usage(curve, seed=0).usage
    assert usage.min() == pytest.approx(trough, abs=1e-3)
    assert usage.max() == pytest.approx(trough + swing, abs=1e-3)


def test_a_low_curve_has_the_mean_that_was_asked_for() -> None:
    assert read_usage("daily:trough=0.226,swing=0.269").usage.mean() == pytest.approx(0.35, abs=0.002)


def test_a_curve_beyond_the_cluster_is_refused() -> None:
    with pytest.raises(TraceError, match=r"trough 0\.7 and swing 0\.5 are 1\.2 in sum"):
        read_usage("daily:trough=0.7")


def test_usage_is_constant_in_a_period_and_repeats_by_whole_days() -> None:
    usage = np.linspace(0.1, 0.9, DAY + HOUR)
    series = UsageSeries("some", "test", usage, start_seconds=600.0)
    assert series.at(600.0) == usage[0]
    assert series.at(1199.9) == usage[1]
    assert series.at(600.0 + 300.0 * (DAY + HOUR - 1)) == usage[-1]
    # An hour after the end of the 25 hours is two hours into the second day.
    assert series.at(600.0 + 300.0 * (DAY + 2 * HOUR)) == usage[2 * HOUR]
    longer = series.lasting(3 * 86_400.0)
    assert longer.usage.size == 3 * DAY
    assert [series.at(time) for time in longer.times()[::50]] == longer.usage[::50].tolist()
    assert series.lasting(450.0).usage.tolist() == usage[:2].tolist()
    with pytest.raises(TraceError, match="cannot last"):
        series.lasting(0.0)


def test_a_series_is_made_of_shares() -> None:
    for wrong in ([], [0.5, 1.2], [float("nan")]):
        with pytest.raises(TraceError, match="usage some has"):
            UsageSeries("some", "test", np.array(wrong))


def test_means_of_periods_keep_the_total() -> None:
    times, values = np.array([0.0, 60.0, 240.0, 700.0]), np.array([1.0, 0.0, 0.5, 0.25])
    means = averaged(times, values, 900.0, 300.0)
    assert means.tolist() == pytest.approx([(60 + 30) / 300, 0.5, (50 + 50) / 300])


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    series = read_usage("bursty:days=1")
    rows = zip(series.times().tolist(), series.usage.tolist(), strict=True)
    path = write(
        tmp_path, "mine.csv", "time_seconds,usage\n" + "".join(f"{at!r},{used!r}\n" for at, used in rows)
    )
    again = read_usage(str(path))
    assert again.name == "mine"
    assert again.usage == pytest.approx(series.usage, abs=1e-12)
    assert again.start_seconds == series.start_seconds


def test_rows_of_any_spacing_become_means_of_five_minutes(tmp_path: Path) -> None:
    path = write(tmp_path, "minutes.csv", "time_seconds,usage\n0,0.2\n60,0.4\n120,0.6\n600,1\n900,0\n")
    assert read_usage(str(path)).usage.tolist() == pytest.approx([0.48, 0.6, 1.0, 0.0])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,usage\n0,0.5\n", "line 1: column time_seconds is missing"),
        ("time_seconds,usage\n0,0.5\n300,61\n", "line 3, column usage: 61 is too large"),
        ("time_seconds,usage\n0,0.5\n300,-1\n", "line 3, column usage: -1 is too small"),
        ("time_seconds,usage\n0,0.5\n300,many\n", "line 3, column usage: 'many' is not a number"),
        ("time_seconds,usage\n0,0.5\n0,0.5\n", "line 3, column time_seconds: 0 is not after 0"),
        (
            "time_seconds,usage\n0,0.5\n9000,0.5\n",
            "line 3, column time_seconds: there is nothing for 9000 seconds",
        ),
        ("time_seconds,usage\n0,0.5\n60,0.5\n", "cover less than five minutes"),
        ("time_seconds,usage\n", "no row below"),
    ],
)
def test_usage_file_errors_name_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, "wrong.csv", text)
    with pytest.raises(TraceError, match=problem) as caught:
        read_usage(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("weekly", "no usage is called 'weekly'.*known are daily, bursty, helios_vcvlY"),
        ("nowhere.csv", "nowhere.csv: there is no such file"),
        ("daily:mood=1", "unknown option 'mood'; known are days.*seed"),
        ("daily:days=many", "option days needs a number"),
        ("daily:days=0", "usage daily: days is 0; it must be above 0"),
        ("daily:days=1e9", "usage daily: days is 1e.09; it must be at most 3660"),
        ("daily:noise=-1", "noise is -1; it must not be negative"),
        ("daily:seed=1.5", "option seed needs a whole number"),
        ("daily:days=1,days=2", "option 'days' is given twice"),
    ],
)
def test_names_and_options_that_are_none_are_answered_precisely(name: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_usage(name)


HELIOS = "time,total_gpu_num,running_gpu_num,pending_gpu_num\n"


def helios(*running: float, step_minutes: int = 5) -> str:
    """Return a published table with these numbers of 64 GPUs in use."""
    minutes = [index * step_minutes for index in range(len(running))]
    rows = [
        f"2020-05-01 {minute // 60:02d}:{minute % 60:02d}:00,64.0,{used},0.0\n"
        for minute, used in zip(minutes, running, strict=True)
    ]
    return HELIOS + "".join(rows)


def test_a_demand_curve_is_moved_into_the_published_range(tmp_path: Path) -> None:
    path = write(tmp_path, "earth.csv", helios(16, 32, 48, 64))
    series = read_usage(str(path))
    assert series.usage.tolist() == pytest.approx([0.42, 0.42 + 0.53 / 3, 0.42 + 1.06 / 3, 0.95])
    assert series.start_seconds == 0.0
    assert series.source.startswith("stand-in for inference usage")
    assert read_usage(f"{path}:lowest=0.1,highest=0.4").usage.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_ten_minute_means_hold_for_two_periods(tmp_path: Path) -> None:
    rows = "time,active,total\n2017-10-03 06:00:00,100,400\n2017-10-03 06:10:00,300,400\n"
    series = read_usage(str(write(tmp_path, "nodes.csv", rows)))
    assert series.usage.tolist() == pytest.approx([0.42, 0.42, 0.95, 0.95])
    assert series.start_seconds == 6 * 3600


def test_longest_stretch_without_gap_of_a_demand_curve_is_used(tmp_path: Path) -> None:
    later = "".join(f"2020-05-02 07:{minute:02d}:00,64,{minute},0\n" for minute in (5, 10, 15, 20))
    silent = "2020-05-02 07:25:00,64,,0\n"
    series = read_usage(str(write(tmp_path, "earth.csv", helios(1, 64) + later + silent)))
    assert series.usage.tolist() == pytest.approx([0.42, 0.42 + 0.53 / 3, 0.42 + 1.06 / 3, 0.95])
    assert series.start_seconds == 7 * 3600 + 300
    assert "longest stretch without a gap" in series.source


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (helios(1, 1, 1), "the demand never changes"),
        (helios(1, 2) + "2020-05-01 00:00:00,64,3,0\n", "line 4, column time: this time is not after"),
        (helios(1, 2) + "yesterday,64,3,0\n", "line 4, column time: 'yesterday' is not a time"),
        (helios(1, 2) + "2020-05-01 00:10:00,0,3,0\n", "line 4, column total_gpu_num: 0 is too small"),
    ],
)
def test_demand_curve_errors_name_their_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_usage(str(write(tmp_path, "earth.csv", text)))


def test_missing_demand_curve_is_refused_with_its_public_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(
        TraceError, match=r"it is public: GitHub S-Lab.*earth_vchbv_5min\.csv.*PUNCTUAL_TRACES"
    ):
        read_usage("helios_vchbv")
    write(tmp_path, "earth_vchbv_5min.csv", helios(1, 2))
    assert read_usage("helios_vchbv").usage.tolist() == [0.42, 0.95]


@pytest.mark.parametrize("name", list(DEMAND_CURVES))
def test_a_public_demand_curve_is_read_whole(name: str) -> None:
    folder = public_data() / "traces" / "helios-usage"
    if not folder.is_dir():
        pytest.skip("the public demand curves are not on this machine")
    series = read_usage(name)
    assert series.usage.min() == pytest.approx(0.42)
    assert series.usage.max() == pytest.approx(0.95)
    assert "stand-in" in series.source
    days = series.duration_seconds / 86_400
    assert days == pytest.approx(31 if name.startswith("helios") else 50.7, abs=0.2)


def test_every_name_has_a_description() -> None:
    assert {name for name, _ in available_usage()} >= {"daily", "bursty", *DEMAND_CURVES}
