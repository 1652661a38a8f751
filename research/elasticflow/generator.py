"""The jobs of Figures 9 to 11: the published generator's draws, repeated from its seeds.

The generator seeds four streams of Python's own generator, so they can be repeated: model, time between
arrivals, duration, GPUs. A fifth, of deadlines and best effort, has no seed there; here it has one. In Figure
10 every deadline is 1.5 times the duration and no job is best effort, so its jobs equal the published ones to
the second.

Elsewhere the simulator's own generator is used (`simulation.workloads.synthetic`, profile ``elasticflow``),
which has the same distributions.
"""

from __future__ import annotations

from math import floor, log
from pathlib import Path
from random import Random

from scheduling.core.question.snapshot import ServiceClass
from simulation.workloads.assembly import assemble
from simulation.workloads.options import WorkloadOptions, split_options
from simulation.workloads.records import JobRecord, ParsedTrace
from simulation.workloads.throughputs import ThroughputTable
from simulation.workloads.trace_file import TraceRow
from simulation.workloads.workload import Workload

NAME = "elasticflow_generator"
GPU_TYPE = "A100"
USUAL_JOBS, USUAL_GAP_SECONDS = 1000, 1500.0

#: Models and global batch sizes in the order of the published generator's list.
MODELS = (
    *(("resnet50", batch) for batch in (64, 128, 256)),
    *(("vgg16", batch) for batch in (64, 128, 256)),
    ("inception3", 64), ("inception3", 128), ("gpt2", 128), ("gpt2", 256),
    ("bert", 128), ("bert", 64), ("deepspeech2", 64), ("deepspeech2", 32),
)  # fmt: skip
#: GPUs requested for draws from each threshold on; below the first threshold, one.
GPUS_FROM = ((0.83, 2), (0.86, 4), (0.89, 8), (0.99, 16))
SHORT_JOBS = 0.8
DRAWS_APART = 1000


def generated(trace: str, table: ThroughputTable, seed: int, draw: int = 0) -> Workload:
    """Return the workload of ``elasticflow_generator:jobs=...`` with models measured on A100 GPUs.

    ``draw``: number of the draw of deadlines and best effort; all else is equal. Options as for synthetic
    profiles. Raises TraceError for an unknown option or a model that is not in the table.
    """
    _, options = split_options(trace, WorkloadOptions())
    return assemble(
        ParsedTrace(_records(options, table, seed, draw)),
        name=trace,
        source=f"ElasticFlow's generator drawn again, seed {seed}; throughputs: {table.source}, {GPU_TYPE}",
        table=table,
        gpu_types=(GPU_TYPE,),
        seed=seed,
        options=options,
    )


def _records(options: WorkloadOptions, table: ThroughputTable, seed: int, draw: int) -> list[JobRecord]:
    models, gaps, durations, sizes = (Random(seed + stream) for stream in range(4))
    deadlines = Random(seed + 4 + DRAWS_APART * draw)
    mean_gap = options.mean_interarrival_seconds or USUAL_GAP_SECONDS
    nowhere = TraceRow(Path(NAME), 0, {}, {})
    records: list[JobRecord] = []
    arrival = 0.0
    for number in range(options.jobs or USUAL_JOBS):
        gpus = _gpus(sizes.random())
        pair = models.choice(MODELS)
        seconds = _seconds(durations)
        if number:
            arrival -= mean_gap * log(1.0 - gaps.random())
        tightness = options.tightest + (options.loosest - options.tightest) * deadlines.random()
        best_effort = deadlines.random() < options.best_effort_share
        rate = table.points.get(pair, {}).get(GPU_TYPE, {}).get(gpus, 0.0)
        records.append(
            JobRecord(
                nowhere,
                f"{number:06d}",
                float(floor(arrival)),
                model=pair[0],
                global_batch_size=pair[1],
                iterations=float(max(1, floor(seconds * rate))),
                requested_gpus=gpus,
                requested_seconds=float(floor(seconds)),
                deadline_at=float(floor(arrival + floor(tightness * seconds))),
                service_class=ServiceClass.BEST_EFFORT if best_effort else ServiceClass.SLO,
            )
        )
    return records


def _gpus(draw: float) -> int:
    """Return requested GPUs: 83 % one, 3 % two, 3 % four, 10 % eight, 1 % sixteen."""
    return next((gpus for start, gpus in reversed(GPUS_FROM) if draw >= start), 1)


def _seconds(durations: Random) -> float:
    """Draw 80 % between 10 minutes and 5.3 hours, 20 % from there to a week, uniform in the logarithm."""
    low = 1.0 if durations.random() < SHORT_JOBS else 2.5
    seconds: float = 60.0 * 10.0 ** (low + 1.5 * durations.random())
    return seconds
