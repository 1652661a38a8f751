"""Our policies for each published bar, and the rows made of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from research.elasticflow.rows import PolicyRow, Variant
from research.elasticflow.specs import ElasticFlowSpec
from research.elasticflow.tables import AUTHORS_SIMULATOR
from research.figure import Context
from research.rows import over
from research.store import RunResult
from scheduling.core.question.snapshot import AdmissionRule

ELASTICFLOW = "ElasticFlow"


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy of ours beside one published bar."""

    series: str
    policy: str
    variant: Variant = Variant.ONLY
    admission: AdmissionRule = AdmissionRule.PER_JOB
    hold_arrivals: bool = False

    @property
    def label(self) -> str:
        """The policy, with its variant if the policy's name does not imply it."""
        if self.variant in (Variant.TOGETHER, Variant.ONE_BY_ONE):
            return f"{self.policy}, {self.variant.value}"
        return self.policy

    def spec(self, base: ElasticFlowSpec) -> ElasticFlowSpec:
        """Return the run of this policy on the workload and cluster of ``base``."""
        return replace(base, policy=self.policy, admission=self.admission, hold_arrivals=self.hold_arrivals)


#: By published series. The first one of each is the primary counterpart of the published value.
CONTENDERS: dict[str, tuple[Contender, ...]] = {
    "EDF": (
        Contender("EDF", "edf_artifact", Variant.AS_PUBLISHED),
        Contender("EDF", "edf", Variant.AS_DESCRIBED),
    ),
    "EDF+AdmissionControl": (
        Contender("EDF+AdmissionControl", "edf_admission_artifact", Variant.AS_PUBLISHED),
        Contender("EDF+AdmissionControl", "edf_admission", Variant.AS_DESCRIBED),
    ),
    "EDF+ElasticScaling": (Contender("EDF+ElasticScaling", "edf_elastic"),),
    "Gandiva": (
        Contender("Gandiva", "gandiva_artifact", Variant.AS_PUBLISHED),
        Contender("Gandiva", "gandiva", Variant.AS_DESCRIBED),
    ),
    "Tiresias": (Contender("Tiresias", "tiresias"),),
    "Themis": (Contender("Themis", "themis"),),
    "Chronus": (Contender("Chronus", "chronus"),),
    "Pollux": (Contender("Pollux", "pollux"),),
    ELASTICFLOW: (
        Contender(ELASTICFLOW, "elasticflow", Variant.ONE_BY_ONE),
        Contender(ELASTICFLOW, "elasticflow", Variant.TOGETHER, AdmissionRule.BATCH, True),
        Contender(ELASTICFLOW, "punctual", Variant.OURS),
    ),
}
BASELINES = ("EDF", "Gandiva", "Tiresias", "Themis", "Chronus")


Value = Callable[[RunResult], float | None]


def on_time(result: RunResult) -> float | None:
    """Return the share of SLO jobs on time."""
    return result.ratio


def contenders(series: Iterable[str]) -> list[Contender]:
    """Return all contenders of these published series."""
    return [one for name in series for one in CONTENDERS[name]]


def specs_of(base: ElasticFlowSpec, who: Sequence[Contender]) -> list[ElasticFlowSpec]:
    """Return the contenders' runs on one workload and cluster."""
    return [one.spec(base) for one in who]


def compared(
    context: Context,
    figure: str,
    x: str,
    base: ElasticFlowSpec,
    who: Sequence[Contender],
    *,
    value: Value = on_time,
    shares: bool = True,
    missing: dict[str, str] | None = None,
    draws: Sequence[int] = (),
) -> list[PolicyRow]:
    """Return the rows of one place of a figure, ratios to ElasticFlow included.

    ``missing``: why a policy has no value here. ``draws``: further draws of deadlines, whose values give the
    spread.
    """
    rows = []
    reference = CONTENDERS[ELASTICFLOW][0]
    flow = _value(context, reference.spec(base), value)
    flow_published = context.published.get(figure, ELASTICFLOW, x)
    for one in who:
        spec = one.spec(base)
        result = context.get(spec)
        ours = value(result) if result is not None else None
        published = context.published.get(figure, one.series, x)
        spread = [_value(context, replace(spec, deadline_draw=draw), value) for draw in draws]
        known = [each for each in [ours, *spread] if each is not None]
        itself = one.series == ELASTICFLOW
        rows.append(
            PolicyRow(
                figure=figure,
                x=x,
                series=one.series,
                policy=one.policy,
                variant=one.variant,
                published=published,
                ours=ours,
                spec=spec,
                result=result,
                authors=AUTHORS_SIMULATOR.get((figure, x), {}).get(one.series),
                ratio_published=None if itself else over(flow_published, published),
                ratio_ours=None if itself else over(flow, ours),
                shares=shares,
                missing=(missing or {}).get(one.policy) or context.results.failed.get(spec, ""),
                spread=(min(known), max(known)) if len(known) > 1 else None,
            )
        )
    return rows


def _value(context: Context, spec: ElasticFlowSpec, value: Value) -> float | None:
    result = context.get(spec)
    return value(result) if result is not None else None
