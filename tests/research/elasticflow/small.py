"""A small folder of public traces, and results made by hand, for tests of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from research.elasticflow.rows import PolicyRow, Variant
from research.elasticflow.specs import ElasticFlowSpec
from research.executing import Results
from research.figure import Context, Published
from research.store import RunResult

COUNTS = (1, 2, 4, 8, 16)
RATES = {"bert": (6.0, 8.6, 10.3, 9.0, 8.0), "resnet50": (1.8, 3.4, 6.2, 10.4, 15.2)}
JOBS = (
    ("bert", 64, 4, 3_600, 1.2),
    ("resnet50", 256, 1, 9_000, 1.4),
    ("resnet50", 256, 8, 5_000, 0.7),
    ("bert", 64, 1, 7_000, 1.0),
    ("resnet50", 256, 4, 4_000, 1.3),
    ("bert", 64, 2, 2_000, 0.9),
)
BEGIN = 3_733_274
"""Where the 25-job trace begins."""

FIGURES = """figure,series,x,value,unit
6b,EDF,"128 GPUs, 195 jobs",0.0872,deadline_satisfactory_ratio
6b,Tiresias,"128 GPUs, 195 jobs",0.4564,deadline_satisfactory_ratio
6b,ElasticFlow,"128 GPUs, 195 jobs",0.6667,deadline_satisfactory_ratio
12b,resnet50,1->2 GPU,1.884,seconds
12a,resnet50,profiling,549.759,seconds
"""


def traces(folder: Path) -> Path:
    """A traces folder with the 195-job trace (of six jobs), its throughput table and a few published
    values."""
    place = folder / "elasticflow"
    (place / "traces").mkdir(parents=True)
    table = ["gpu_type,model,global_batch_size,num_gpu,iterations_per_second"]
    for model, batch, *_ in dict.fromkeys((model, batch) for model, batch, *_ in JOBS):
        table += [
            f"A100,{model},{batch},{gpus},{rate}" for gpus, rate in zip(COUNTS, RATES[model], strict=True)
        ]
    (place / "throughput.csv").write_text("\n".join(table) + "\n")
    lines = ["job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"]
    for number, (model, batch, gpus, seconds, tightness) in enumerate(JOBS):
        at = BEGIN + 300 * number
        iterations = int(seconds * RATES[model][COUNTS.index(gpus)])
        lines.append(
            f"job-{number},{at},{iterations},{model},{at + int(tightness * seconds)},{batch},{gpus},{seconds}"
        )
    (place / "traces" / "testbed_195job.csv").write_text("\n".join(lines) + "\n")
    (place / "paper_figures.csv").write_text(FIGURES)
    return folder


def result(met: int, slo_jobs: int, **facts: Any) -> RunResult:
    """Return a result with this many jobs on time and the others late."""
    summary = {
        "deadlines_met": met,
        "slo_jobs": slo_jobs,
        "deadline_satisfactory_ratio": met / slo_jobs,
        "declined": 0,
        "admitted": slo_jobs,
        "admitted_late": 0,
        "fates": {"slo": {"missed": slo_jobs - met}},
        "rescales": 3,
        "migrations": 1,
        "preemptions": 0,
        "decisions": 20,
        "mean_gpu_utilisation": 0.25,
        "wall_seconds": 0.5,
        "trace": "a trace",
    }
    bounds = {
        "peak_cluster_efficiency": 0.5,
        "slo_jobs_possible_alone": slo_jobs,
        "slo_jobs_possible_as_requested": slo_jobs,
    }
    known = {name: value for name, value in facts.items() if name in summary}
    return RunResult(
        summary | known, bounds | {name: value for name, value in facts.items() if name not in summary}, {}
    )


def context(published: dict[tuple[str, str, str], float], *, full: bool = False, **results: Any) -> Context:
    """A context with these published values and no results."""
    return Context(Published(published, "a test"), Results(**results), full)


def row(policy: str, series: str, published: float, ours: float, **other: Any) -> PolicyRow:
    """A row of Figure 8(a) with 200 jobs."""
    defaults: dict[str, Any] = {
        "figure": "8a",
        "x": "64 T4 GPUs, 195 jobs",
        "variant": Variant.ONLY,
        "spec": ElasticFlowSpec(policy, "t4_195job", 16, 4, 60.0),
        "result": result(round(ours * 200), 200),
    }
    return PolicyRow(policy=policy, series=series, published=published, ours=ours, **(defaults | other))
