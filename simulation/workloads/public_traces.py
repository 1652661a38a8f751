"""Public traces by name: their places in the traces folder, and where the originals are published.

None of them is part of this repository. `PUNCTUAL_TRACES` names their folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.throughputs import GAVEL_TABLE, LONG_TABLE

VARIABLE = "PUNCTUAL_TRACES"
REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = REPOSITORY_ROOT.parent / "shared" / "data"

ELASTICFLOW_TRACES = "GitHub microsoft/elasticflow-traces, data/elasticflow-traces.tar.gz"
ELASTICFLOW = "GitHub pkusys/ElasticFlow, ElasticFlow/traces_for_ElasticFlow"
POLLUX = "GitHub petuum/adaptdl, branch osdi21-artifact, simulator"
GAVEL = "GitHub stanford-futuredata/gavel, scheduler/traces/msr/seed=0"
SHOCKWAVE = "GitHub uw-mad-dash/shockwave, scheduler/traces/reproduce"
PHILLY = f"{POLLUX}/traces/philly.csv (made of GitHub msr-fiddle/philly-traces)"
TIRESIAS = "GitHub SymbioticLab/Tiresias, simulator/60_job.csv"
# By the throughput table that covers a format's models.
THROUGHPUTS = {
    LONG_TABLE: "GitHub pkusys/ElasticFlow, ElasticFlow/scheduler/throughputs_A100 and throughputs_T4",
    GAVEL_TABLE: "GitHub stanford-futuredata/gavel, scheduler/simulation_throughputs.json",
}


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """One public trace. ``place`` is its path in the traces folder; ``original`` where it was published.

    ``servers``, ``gpus_per_server`` and ``slot_seconds``: the cluster on which its authors simulate it, if
    known.
    """

    name: str
    place: str
    original: str
    description: str
    jobs: int
    servers: int | None = None
    gpus_per_server: int | None = None
    slot_seconds: float | None = None


def _itp_clusters() -> list[PublicTrace]:
    jobs = (1595, 5778, 3011, 15802, 3629, 2396, 12699, 13047, 11134, 260)
    servers = (64, 64, 64, 128, 64, 64, 128, 128, 128, 32)
    return [
        PublicTrace(
            f"cluster{number:02d}",
            f"elasticflow/traces/cluster{number:02d}.csv",
            f"{ELASTICFLOW_TRACES}, file for cluster {number}",
            f"ITP cluster {number}, two months, with models and deadlines",
            count,
            size,
            8,
            60.0,
        )
        for number, (count, size) in enumerate(zip(jobs, servers, strict=True), start=1)
    ]


def _pollux_workloads() -> list[PublicTrace]:
    sizes = {"": 160, "-0.5": 80, "-1.5": 240, "-2.0": 320, "-realistic": 160}
    return [
        PublicTrace(
            f"pollux{kind.replace('-', '_')}_{number}",
            f"traces/pollux/workloads{kind}/workload-{number}.csv",
            f"{POLLUX}/workloads{kind}/workload-{number}.csv",
            f"Pollux workload {number}{_POLLUX_KINDS[kind]}, 8 hours on T4 GPUs",
            jobs,
            16,
            4,
            60.0,
        )
        for kind, jobs in sizes.items()
        for number in range(1, 9)
    ]


_POLLUX_KINDS = {
    "": "",
    "-0.5": " at half the load",
    "-1.5": " at 1.5 times the load",
    "-2.0": " at twice the load",
    "-realistic": " with sizes as users choose them",
}


PUBLIC_TRACES: dict[str, PublicTrace] = {
    trace.name: trace
    for trace in (
        PublicTrace(
            "testbed_195job",
            "elasticflow/traces/testbed_195job.csv",
            f"{ELASTICFLOW_TRACES}, file 195job.csv",
            "ElasticFlow's testbed trace, two days on A100 GPUs",
            195,
            16,
            8,
            240.0,
        ),
        PublicTrace(
            "t4_195job",
            "elasticflow/traces/t4_195job.csv",
            f"{ELASTICFLOW}/elasticVpollux_e.csv",
            "the same 195 arrivals with models measured on T4 GPUs",
            195,
            16,
            4,
            60.0,
        ),
        *_itp_clusters(),
        PublicTrace(
            "philly_103959",
            "traces/elasticflow-throughputs/philly_103959.csv",
            ELASTICFLOW,
            "one Philly virtual cluster, with models and deadlines",
            876,
            32,
            8,
            60.0,
        ),
        PublicTrace(
            "resnet_cifar_trace",
            "traces/elasticflow-throughputs/resnet_cifar_trace.csv",
            ELASTICFLOW,
            "five small jobs to try things with",
            5,
        ),
        PublicTrace(
            "philly_all",
            "traces/philly/philly.csv",
            PHILLY,
            "all of Philly from 10 minutes on (one virtual cluster: philly_all:virtual_cluster=2869ce); "
            "models are drawn",
            39923,
        ),
        *(
            PublicTrace(
                f"gavel_{cluster}",
                f"traces/gavel/msr_seed0_{cluster}.csv",
                f"{GAVEL}/{cluster}.trace",
                f"Gavel's jobs of Philly virtual cluster {cluster}",
                jobs,
            )
            for cluster, jobs in (("0e4a51", 1181), ("103959", 986), ("2869ce", 533), ("ed69ec", 951))
        ),
        *(
            PublicTrace(
                f"shockwave_{jobs}",
                f"traces/shockwave/{jobs}jobs.csv",
                f"{SHOCKWAVE}, the file whose name begins with {jobs}_",
                "Shockwave's jobs, with the batch kept as named",
                jobs,
                servers,
                4,
            )
            for jobs, servers in ((120, 8), (220, 16), (460, 32))
        ),
        PublicTrace(
            "tiresias_60", "traces/tiresias/60_job.csv", TIRESIAS, "Tiresias' sample; models are drawn", 60
        ),
        *_pollux_workloads(),
    )
}


def traces_folder() -> Path | None:
    """Return the folder with public traces: `PUNCTUAL_TRACES`, else the default one, or None without either.

    Raises TraceError if the variable names no folder.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_dir():
            raise TraceError(f"{VARIABLE} is {quoted(named)}, which is no folder")
        return Path(named)
    return DEFAULT_FOLDER if DEFAULT_FOLDER.is_dir() else None


def find_trace(name: str) -> Path:
    """Return the file of a public trace, or of any other trace in the traces folder, by name.

    The name is one of `PUBLIC_TRACES`, a file's name with or without ``.csv``, or its path in the folder.

    Raises TraceError with the source of the public original, or with the known names.
    """
    folder = traces_folder()
    known = PUBLIC_TRACES.get(name)
    if known is not None and folder is not None and (folder / known.place).is_file():
        return folder / known.place
    found = _search(folder, name) if folder is not None else []
    if len(found) == 1:
        return found[0]
    if known is not None:
        raise TraceError(
            f"trace {name} is not on this machine ({_where(folder)}); it is public: {known.original}. Put it "
            f"in a folder as {Path(known.place).name} and set {VARIABLE} to that folder, or give the file's "
            "path"
        )
    if found and folder is not None:
        choices = listed([str(path.relative_to(folder).with_suffix("")) for path in found])
        raise TraceError(f"trace {quoted(name)} could be any of {choices}; say which")
    raise TraceError(f"no trace is called {quoted(name)} ({_where(folder)})")


def _search(folder: Path, name: str) -> list[Path]:
    if not name or ".." in Path(name).parts or Path(name).is_absolute():
        return []
    wanted = name.removesuffix(".csv") + ".csv"
    known = PUBLIC_TRACES.get(name)
    last = {Path(wanted).name, Path(known.place).name if known is not None else ""}
    direct = folder / wanted
    if direct.is_file():
        return [direct]
    if len(Path(name).parts) > 1:
        return []
    return sorted(path for path in folder.rglob("*.csv") if path.name in last)


def _where(folder: Path | None) -> str:
    return f"looked in {folder}" if folder is not None else f"{VARIABLE} is not set"
