"""The jobs of the live run: what each one trains, and the system that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.folders import PROJECT
from punctual.client.requests import JobOptions

_EXAMPLES = PROJECT / "examples"
_MIXTURE: dict[str, object] = {"width": 64, "hidden": 128}


@dataclass(frozen=True)
class JobKind:
    """One job of the run.

    Attributes:
        name: unique. function: a file. system: the system that it demonstrates.
        options: of the submission, without deadline and iterations.
        arrives: share of the run after which it is submitted.
        work: seconds on one GPU, as a share of the run.
        tightness: its deadline in multiples of that work, beside `DEADLINE_ROOM_SECONDS`; None: best effort.
        needs_plan: whether its deadline is too early without a communication plan. It has no room, so that
            the offered deadline is that of several GPUs under a plan.
    """

    name: str
    function: Path
    system: str
    options: JobOptions
    arrives: float
    work: float
    tightness: float | None
    needs_plan: bool = False

    @property
    def measured_as(self) -> str:
        """Equal for kinds with one function and one set of options, which are measured once."""
        return f"{self.function.name} {self.options}"


#: Deadline slack for start, measuring and one failure, of jobs that need no plan.
DEADLINE_ROOM_SECONDS = 60.0

JOBS: tuple[JobKind, ...] = (
    JobKind(
        "filler", _EXAMPLES / "image_classifier.py", "Lyra", {"batch_size": 32}, arrives=0.0, work=50.0,
        tightness=None,
    ),
    JobKind(
        "dense", _EXAMPLES / "image_classifier.py", "ElasticFlow", {"batch_size": 32}, arrives=0.0, work=0.3,
        tightness=1.5,
    ),
    JobKind(
        "slow link", Path(__file__).parent / "functions" / "wide.py", "Espresso and Cupcake",
        {"batch_size": 32, "lossy": "allowed", "codecs": ["onebit"]}, arrives=0.02, work=0.25, tightness=0.5,
        needs_plan=True,
    ),
    JobKind(
        "tiers", _EXAMPLES / "moe_language_model.py", "MoESys",
        {
            "batch_size": 32,
            "hyperparameters": {
                "width": 64, "hidden": 256, "layers": 3, "experts": 12, "gate": "top1", "tiers": "auto",
            },
        },
        arrives=0.1, work=0.15, tightness=4.0,
    ),
    JobKind(
        "sparse", PROJECT / "benchmarks/gradients/functions/popular.py", "Zen",
        {
            "batch_size": 32,
            "hyperparameters": {
                "items": 40_000, "width": 16, "hidden": 64, "seen": 20, "power": 3.0, "beyond": 2000.0,
            },
        },
        arrives=0.27, work=0.25, tightness=0.5, needs_plan=True,
    ),
    JobKind(
        "tasks", _EXAMPLES / "multi_task_model.py", "MoESys", {"batch_size": 32}, arrives=0.3, work=0.15,
        tightness=4.0,
    ),
    JobKind(
        "adaptive", _EXAMPLES / "moe_language_model.py", "adaptive gating",
        {"batch_size": 32, "hyperparameters": {**_MIXTURE, "gate": "adaptive"}},
        arrives=0.35, work=0.15, tightness=4.0,
    ),
    JobKind(
        "experts", _EXAMPLES / "moe_language_model.py", "Lina",
        # As in `benchmarks/long/lina_live.py`: both rows and gradients take long.
        {"batch_size": 32, "hyperparameters": {"hidden": 128, "gate": "top2"}},
        arrives=0.5, work=0.2, tightness=0.5, needs_plan=True,
    ),
    JobKind(
        "dense, later", _EXAMPLES / "image_classifier.py", "ElasticFlow", {"batch_size": 32}, arrives=0.7,
        work=0.15, tightness=1.5,
    ),
)  # fmt: skip
