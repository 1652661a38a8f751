"""Random small clusters with all kinds of events: invariants hold after each event, and promises are kept."""

from __future__ import annotations

import pytest

from simulation.engine.run import Simulation
from simulation.outcome import RunOutcome
from tests.simulation.engine.worlds import World, random_world

IN_EVERY_RUN = 5
"""Seeds a kind of run and policy in `make test`; `make test-all` takes 2,500 of each, 20,000 in all."""

KINDS = {
    "exact": {},
    "inexact": {"exact": False},
    "failures within the reserve": {"failures": 1, "reserve": 1},
    "failures without a reserve": {"failures": 1},
    "loans": {"lending": True},
    "loans, inexact": {"lending": True, "exact": False},
    "loans, and failures within the reserve": {"lending": True, "failures": 1, "reserve": 1},
    "loans, and failures without a reserve": {"lending": True, "failures": 1},
}


def run(world: World) -> RunOutcome:
    return Simulation(world.workload, world.settings, world.happenings).run()


def policies(kind: str) -> list[str]:
    """Return the policies of a run; only the default policy uses borrowed servers."""
    return ["punctual"] if kind.startswith("loans") else ["punctual", "elasticflow"]


def check(kind: str, seed: int, policy: str) -> None:
    world = random_world(seed, policy=policy, **KINDS[kind])  # type: ignore[arg-type]
    outcome = run(world)
    silent = any("silent" in happening.kind for happening in world.happenings)
    if "failures without a reserve" not in kind and not silent:
        assert outcome.broken == {}, f"{kind}, seed {seed}: {outcome.broken}"


@pytest.mark.parametrize(("kind", "policy"), [(kind, policy) for kind in KINDS for policy in policies(kind)])
def test_no_invariant_is_violated(kind: str, policy: str) -> None:
    for seed in range(IN_EVERY_RUN):
        check(kind, seed + (1000 if policy == "punctual" else 0), policy)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_invariant_is_violated_in_ten_thousand_runs(kind: str) -> None:
    for seed in range(2_500):
        check(kind, 10_000 + seed, policies(kind)[seed % len(policies(kind))])
