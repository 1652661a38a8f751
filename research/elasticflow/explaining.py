"""Why our values differ from the published ones: causes known from the published code and text.

A cause is a function that receives a row and the rows beside it and returns the numbers that support it, or
None if it does not apply. A new cause is one function with `@cause`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from research.elasticflow.generator import NAME as GENERATOR
from research.elasticflow.rows import PolicyRow, Variant
from research.elasticflow.tables import AUTHORS_SIMULATOR_ONE_BY_ONE, LIKELY_CLUSTER
from research.figure import Context
from research.rows import Explanation

TESTBED_FIGURES = ("6a", "6b")
SYNTHETIC_FIGURES = ("9", "10", "11a", "11b")
DRAWN_FIGURES = ("9", "11a", "11b")
"""Figures whose deadlines or best-effort jobs were drawn without a seed."""

PART_OF_DIFFERENCE = 0.2
"""A measurable cause is named if it accounts for at least this part of a difference."""


@dataclass(frozen=True)
class Case:
    """A row that needs an explanation, the rows of the same report, and their input."""

    row: PolicyRow
    rows: Sequence[PolicyRow]
    context: Context

    @property
    def ours(self) -> float:
        """Our value, which every explained row has."""
        assert self.row.ours is not None
        return self.row.ours

    @property
    def published(self) -> float:
        """The published value, which every explained row has."""
        assert self.row.published is not None
        return self.row.published

    def beside(self, *, policy: str | None = None, variant: Variant | None = None) -> float | None:
        """Return our value of another row of the same place and series."""
        row = self.row
        for other in self.rows:
            if (other.figure, other.x, other.series) == (row.figure, row.x, row.series) and other is not row:
                if policy in (None, other.policy) and variant in (None, other.variant):
                    return other.ours
        return None

    def nearer(self, value: float) -> bool:
        """Return whether ours is nearer to ``value`` than to the published one."""
        return abs(self.ours - value) < abs(self.ours - self.published)


Evidence = Callable[[Case], str | None]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause by name, what is known about it, and the function that decides whether it applies."""

    name: str
    fact: str
    evidence: Evidence


CAUSES: list[Cause] = []


def cause(name: str, fact: str) -> Callable[[Evidence], Evidence]:
    """Register a function as a cause."""

    def register(evidence: Evidence) -> Evidence:
        CAUSES.append(Cause(name, fact, evidence))
        return evidence

    return register


def explained(rows: Sequence[PolicyRow], context: Context) -> list[PolicyRow]:
    """Add all causes that apply to the rows beyond their band; a row without any remains unexplained."""
    return [
        replace(row, explanations=tuple(_explanations(Case(row, rows, context)))) if row.beyond_band else row
        for row in rows
    ]


def _explanations(case: Case) -> list[Explanation]:
    answers = ((each, each.evidence(case)) for each in CAUSES)
    return [Explanation(each.name, each.fact, evidence) for each, evidence in answers if evidence is not None]


@cause(
    "Other jobs",
    "The 25-job trace was not published. Its place is taken by the 25 jobs of the 195-job trace from its "
    "stated start (3,733,274 s) on: the same cluster and kind of jobs, but not the same jobs.",
)
def _stand_in(case: Case) -> str | None:
    if case.row.figure != "6a" or case.row.result is None:
        return None
    return f"one job of {case.row.result.slo_jobs} is {1 / case.row.result.slo_jobs:.3f}"


@cause(
    "Measured on hardware",
    "The published bars of Figures 6(a) and 6(b) were measured on 16 servers with 8 A100 each, not "
    "simulated; the paper states a simulator error of up to 3 %. Here they are simulated from the published "
    "throughput table.",
)
def _testbed(case: Case) -> str | None:
    if case.row.figure not in TESTBED_FIGURES:
        return None
    if case.row.authors is None:
        return "what the authors' simulator gives for this bar is not known"
    return (
        f"the authors' own simulator gives {case.row.authors:.3f} on this trace, the hardware gave "
        f"{case.published:.3f}; ours {case.ours:.3f}"
    )


@cause(
    "Probably another cluster",
    "On the stated cluster of 256 GPUs hardly any job of this trace ever waits, so that all policies "
    "without elasticity meet the same deadlines. The published bars differ from each other, and all come "
    "out on a cluster of 32 GPUs.",
)
def _other_cluster(case: Case) -> str | None:
    size = LIKELY_CLUSTER.get((case.row.figure, case.row.x))
    if size is None:
        return None
    result = case.context.get(replace(case.row.spec, servers=size[0], gpus_per_server=size[1]))
    if (
        result is None
        or result.ratio is None
        or abs(result.ratio - case.published) >= abs(case.ours - case.published)
    ):
        return None
    return (
        f"on {size[0]} x {size[1]} GPUs ours is {result.ratio:.3f}, on {case.row.spec.servers} x "
        f"{case.row.spec.gpus_per_server} {case.ours:.3f}; published {case.published:.3f}"
    )


@cause(
    "The authors' simulator gives another value as well",
    "Run unmodified on the published files, the authors' own simulator does not give this published value "
    "either, and errs to the side on which ours lies.",
)
def _authors_differ(case: Case) -> str | None:
    authors = case.row.authors
    if authors is None or case.row.figure in TESTBED_FIGURES:
        return None
    if (authors - case.published) / (case.ours - case.published) < PART_OF_DIFFERENCE:
        return None
    return f"authors' simulator {authors:.3f}, published {case.published:.3f}, ours {case.ours:.3f}"


@cause(
    "Newcomers are decided one by one",
    "The published simulator decides all arrivals of a planning instant as one batch and drops the whole "
    "batch if it does not fit; an admitted job that pauses have made late then refuses all that come after "
    "it. Here each newcomer is decided by itself, in submission order, and a job at risk refuses nobody.",
)
def _one_by_one(case: Case) -> str | None:
    row = case.row
    if row.policy not in ("elasticflow", "punctual") or case.ours <= case.published:
        return None
    if row.variant is Variant.TOGETHER:
        return None
    changed = AUTHORS_SIMULATOR_ONE_BY_ONE.get((row.figure, row.x))
    if changed is not None and case.nearer(changed):
        return f"the authors' simulator with this alone changed gives {changed:.3f}; ours {case.ours:.3f}"
    together = case.beside(policy="elasticflow", variant=Variant.TOGETHER)
    if together is not None and case.published <= together < case.ours:
        return (
            f"deciding the newcomers of a slot together gives {together:.3f} here, one by one {case.ours:.3f}"
        )
    return None


@cause(
    "Plans carry pauses, and a late job refuses nobody",
    "The published code plans without pauses, so that admitted jobs can end late; while one is late the "
    "test of every newcomer fails. Here every change of GPUs within a plan carries its pause, stored plans "
    "hold where a new filling would not, and a job at risk is left out of the test.",
)
def _no_late_job(case: Case) -> str | None:
    row = case.row
    if row.policy not in ("elasticflow", "punctual") or row.result is None or not row.shares:
        return None
    late = row.result.summary["admitted_late"]
    if case.ours <= case.published or late:
        return None
    return (
        f"{row.result.summary['admitted']:,} jobs admitted here, none late, {row.result.declined:,} declined"
    )


@cause(
    "Batches here are milder",
    "Deciding the newcomers of a slot together follows the published simulator only so far: here a job that "
    "could not be met even with the cluster to itself is refused by itself, where it refuses its whole "
    "batch there.",
)
def _milder_batches(case: Case) -> str | None:
    if case.row.variant is not Variant.TOGETHER or case.row.result is None or case.ours <= case.published:
        return None
    hopeless = case.row.result.slo_jobs - int(case.row.result.facts["slo_jobs_possible_alone"])
    return f"{hopeless} jobs could not be met even alone"


@cause(
    "punctual admits more",
    "This policy is not in the paper: before it declines a job it searches other orders and plans that still "
    "keep every promise.",
)
def _punctual(case: Case) -> str | None:
    flow = case.beside(policy="elasticflow", variant=Variant.ONE_BY_ONE)
    if case.row.policy != "punctual" or flow is None or case.ours <= case.published:
        return None
    return f"elasticflow {flow:.3f}, punctual {case.ours:.3f}"


TEXT_DIFFERS = {
    "edf": (
        "the text scales a job out until its throughput stops rising; the published code goes on to the "
        "largest profiled count (64 at most), where some models are slower again"
    ),
    "edf_admission": (
        "the text scales a job out until its throughput stops rising and plans with pauses; the published "
        "code goes on to the largest profiled count, plans without pauses, pauses every job at every "
        "instant, and while an admitted job is late it refuses every newcomer"
    ),
    "gandiva": (
        "the text rotates jobs every slot; the published code does so only at instants that are a multiple "
        "of 60 s, which is rare, so that queued jobs starve, and looks at the cluster only when jobs arrive"
    ),
}


@cause(
    "The published code is not what the text describes",
    "Both are policies here. Bars were made by the code; this row follows the text.",
)
def _text(case: Case) -> str | None:
    if case.row.variant is not Variant.AS_DESCRIBED:
        return None
    code = case.beside(variant=Variant.AS_PUBLISHED)
    if code is None or abs(code - case.published) >= abs(case.ours - case.published):
        return None
    return (
        f"{TEXT_DIFFERS[case.row.policy]}; the code's rule gives {code:.3f} here, the text's {case.ours:.3f}"
    )


@cause(
    "Other draws of deadlines",
    "The published generator seeds models, arrivals, durations and GPUs, which are drawn again here "
    "exactly; deadlines and best effort it draws without a seed, so those of the published runs are lost.",
)
def _other_draws(case: Case) -> str | None:
    row = case.row
    if row.figure not in DRAWN_FIGURES or row.result is None:
        return None
    if not str(row.result.summary["trace"]).startswith(GENERATOR):
        return None
    if row.spread is None:
        return "one draw was run: the spread over draws is not known"
    low, high = row.spread
    inside = "inside" if low <= case.published <= high else "outside"
    return (
        f"over the draws run ours goes from {low:.3f} to {high:.3f}; the published {case.published:.3f} lies "
        f"{inside}"
    )


@cause(
    "Other models",
    "The measured throughputs are not here: jobs of the same distributions are drawn for built-in models, "
    "so that levels cannot be compared, only orders.",
)
def _other_models(case: Case) -> str | None:
    row = case.row
    if row.figure not in SYNTHETIC_FIGURES or row.result is None:
        return None
    trace = str(row.result.summary["trace"])
    return None if trace.startswith(GENERATOR) else f"workload {trace}"


@cause(
    "GPUs that are left over go to other jobs",
    "The published code hands out GPUs that are left over to the job whose GPU time grows most for each; "
    "the text, and this program, to the one whose GPU time grows least. Of the jobs on time that changes "
    "little (146 to 148 and 142 to 142 in the authors' simulator), of speed-ups more.",
)
def _greedy(case: Case) -> str | None:
    row = case.row
    if row.policy not in ("elasticflow", "punctual") or row.shares or row.result is None:
        return None
    return (
        f"published {case.published:.3f}, ours {case.ours:.3f}, with {row.result.summary['rescales']:,} "
        f"rescales"
    )


@cause(
    "Best effort goes shortest first",
    "The text leaves the order of best-effort jobs open beyond a low mean completion time; the published "
    "code uses the rule for all leftover GPUs. Here those that wait start in the order of their remaining "
    "time.",
)
def _shortest_first(case: Case) -> str | None:
    row = case.row
    if row.figure != "11b" or row.policy not in ("elasticflow", "punctual") or case.ours <= case.published:
        return None
    others = [
        other.ours
        for other in case.rows
        if other.figure == "11b" and other.x == row.x and other.policy == "tiresias"
    ]
    if not others or others[0] is None:
        return None
    return f"{case.ours:.2f} times as fast as Gandiva, Tiresias {others[0]:.2f} times"


@cause(
    "The published value repeats its neighbour",
    "Two neighbouring published values of one series are the same number where the authors' own simulator "
    "gives different ones: one of them is probably a slip.",
)
def _repeated(case: Case) -> str | None:
    row, published = case.row, case.context.published
    places = published.places(row.figure)
    if row.x not in places or row.authors is None or row.figure != "9":
        return None
    at = places.index(row.x)
    for other in places[max(0, at - 1) : at]:
        if published.get(row.figure, row.series, other) == case.published:
            return (
                f"{case.published:.3f} stands at {other} and at {row.x}; the authors' simulator gives "
                f"{row.authors:.3f}"
            )
    return None


@cause(
    "Only changed jobs pause",
    "The published simulator lets every running job pause at every planning instant, its GPUs changed or "
    "not, and restarts all trainers every so many instants; here only a job whose GPUs change pauses.",
)
def _pauses(case: Case) -> str | None:
    row = case.row
    if row.result is None or row.variant is Variant.AS_PUBLISHED or row.figure in ("10", "11b"):
        return None
    if case.ours <= case.published or row.policy in ("edf", "pollux"):
        return None
    facts = row.result.summary
    changes = facts["rescales"] + facts["migrations"] + facts["preemptions"]
    return f"{changes:,} changes of GPUs at {facts['decisions']:,} decisions paid a pause here"


AT_REQUESTED_SIZE = ("gandiva_artifact", "gandiva", "tiresias", "themis", "chronus")
NEAR_BOUND = 0.03


@cause(
    "Hardly anybody waits here",
    "A policy that runs jobs at the size their user asked for meets at most the deadlines that leave the "
    "job its whole duration, about half of them. Here it reaches nearly all of those: there is room for "
    "every job. The published run lies below, so jobs waited in it.",
)
def _nobody_waits(case: Case) -> str | None:
    row = case.row
    if row.policy not in AT_REQUESTED_SIZE or row.result is None or not row.shares or not row.result.slo_jobs:
        return None
    bound = row.result.facts["slo_jobs_possible_as_requested"] / row.result.slo_jobs
    if case.ours < bound - NEAR_BOUND or case.ours <= case.published:
        return None
    used = row.result.summary["mean_gpu_utilisation"]
    return (
        f"at most {bound:.3f} are possible, ours {case.ours:.3f}; {used:.0%} of the GPUs are in use on "
        f"average"
    )


OWN_WAYS = {
    "themis": (
        "solved exactly by bisection here; in the published code the count of rounds received never grows, "
        "the isolated rate lacks the throughput, and progress follows the trace's duration"
    ),
    "chronus": (
        "no run of the published code is known beside the bar. Here leases are counted per interval between "
        "deadlines, every job is consolidated where the original splits jobs by local search, and a change "
        "of GPUs costs the measured pause where it costs 0.5 s times (1 + log2 of the GPUs)"
    ),
    "pollux": (
        "the published bar is from Pollux's own simulator with a genetic search; here sizes are divided "
        "exactly, a restart costs the measured pause, not 30 s, and the statistical efficiency is its mean "
        "over the training"
    ),
    "tiresias": "GPU time attained counts pauses here, which the published simulator leaves out",
    "edf_elastic": (
        "plans carry pauses here and fill uniformly, which leaves slack; plans of the published one end "
        "exactly at the deadline, so that any pause makes a job late"
    ),
    "gandiva_artifact": (
        "the published rebalancing of servers between groups goes back and forth at arrivals; what a long "
        "gap between arrivals leaves running decides, so that a small difference changes who runs for hours"
    ),
    "edf_admission_artifact": (
        "while an admitted job is late every newcomer is refused: a few seconds of pause decide whether a "
        "long job is late, and with it all jobs that come while it runs"
    ),
}


@cause(
    "The policy is built in another way",
    "Known differences between the published implementation and this one.",
)
def _own_way(case: Case) -> str | None:
    return OWN_WAYS.get(case.row.policy)
