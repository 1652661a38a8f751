"""The pure core: whatever happens to messages, no old generation starts and goals never go back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from workers.agent.orders.decisions import (
    ForgetWorker,
    KillWorker,
    Memory,
    SeenGeneration,
    SetGoal,
    StartWorker,
    WorkerView,
    decide,
    is_stale,
)
from workers.agent.orders.desired_state import (
    GOALS,
    DesiredState,
    GenerationDesire,
    Goal,
    WorkerSlot,
    goal_rank,
)


def desire(
    job: str = "a", generation: int = 1, *, goal: Goal = "train", epoch: int = 1, ranks: int = 1
) -> GenerationDesire:
    slots = tuple(WorkerSlot(rank, rank) for rank in range(ranks))
    return GenerationDesire(job, generation, epoch, "training", goal, {"from": "nothing"}, slots, {})


def desired_state(*desires: GenerationDesire, epoch: int = 1, version: int = 1) -> DesiredState:
    return DesiredState(epoch, version, desires)


def view(
    generation: int = 1, *, job: str = "a", alive: bool = True, goal: Goal = "train", settled: bool = False
) -> WorkerView:
    return WorkerView(
        f"{job}-{generation}", job, "training", generation, 0, alive, goal, {"from": "nothing"}, settled
    )


def test_a_new_generation_is_started_and_remembered() -> None:
    decision = decide(desired_state(desire(ranks=2)), [], Memory(), may_start=True)
    assert [action.slot.rank for action in decision.actions if isinstance(action, StartWorker)] == [0, 1]
    assert decision.memory.generations["a", "training"] == SeenGeneration(1, 1, frozenset({0, 1}))


def test_an_older_generation_is_refused() -> None:
    memory = Memory(1, {("a", "training"): SeenGeneration(3)})
    decision = decide(desired_state(desire(generation=2)), [], memory, may_start=True)
    assert decision.actions == ()
    assert "generation 3 of epoch 0 was already obeyed" in decision.refused[0]


def test_an_older_epoch_may_steer_a_generation_but_not_start_one() -> None:
    memory = Memory(5, {("a", "training"): SeenGeneration(1, 5, frozenset({0}))})
    assert decide(desired_state(desire(generation=2, epoch=4), epoch=5), [], memory, may_start=True).refused
    running = decide(
        desired_state(desire(goal="suspend", epoch=4), epoch=5), [view()], memory, may_start=True
    )
    assert running.actions == (SetGoal("a-1", "suspend", {"from": "nothing"}),)


def test_a_later_epoch_of_one_job_does_not_block_another() -> None:
    later = decide(desired_state(desire("b", epoch=8), epoch=8), [], Memory(), may_start=True)
    earlier = desired_state(desire("a", epoch=7), desire("b", epoch=8), epoch=8, version=2)
    decision = decide(earlier, [view(job="b")], later.memory, may_start=True)
    assert [action.desire.job for action in decision.actions if isinstance(action, StartWorker)] == ["a"]


def test_answer_of_an_older_planner_is_stale_even_after_a_restart() -> None:
    memory = decide(desired_state(desire(epoch=8), epoch=8), [], Memory(), may_start=True).memory
    assert is_stale(desired_state(desire(generation=9, epoch=7), epoch=7, version=99), None, memory)


def test_profiling_does_not_block_training() -> None:
    memory = Memory(1, {("a", "profiling"): SeenGeneration(9)})
    decision = decide(desired_state(desire(generation=1)), [], memory, may_start=True)
    assert isinstance(decision.actions[0], StartWorker)


def test_the_old_generation_keeps_running_while_the_new_one_prepares() -> None:
    memory = Memory(1, {("a", "training"): SeenGeneration(1, 1, frozenset({0}))})
    decision = decide(
        desired_state(desire(), desire(generation=2, goal="prepare")), [view()], memory, may_start=True
    )
    assert [type(action) for action in decision.actions] == [StartWorker]


def test_an_unwanted_worker_is_killed_and_forgotten_once_settled() -> None:
    memory = Memory(1, {("a", "training"): SeenGeneration(1, 1, frozenset({0}))})
    assert decide(desired_state(), [view()], memory, may_start=True).actions == (
        KillWorker("a-1", "not wanted any more"),
    )
    assert decide(desired_state(), [view(alive=False)], memory, may_start=True).actions == ()
    assert decide(desired_state(), [view(alive=False, settled=True)], memory, may_start=True).actions == (
        ForgetWorker("a-1"),
    )


def test_a_worker_that_ended_is_not_restarted_nor_forgotten() -> None:
    memory = Memory(1, {("a", "training"): SeenGeneration(1, 1, frozenset({0}))})
    decision = decide(desired_state(desire()), [view(alive=False, settled=True)], memory, may_start=True)
    assert decision.actions == ()
    assert decision.lost == ()


def test_a_worker_without_any_trace_is_lost_and_not_restarted() -> None:
    memory = Memory(1, {("a", "training"): SeenGeneration(1, 1, frozenset({0}))})
    decision = decide(desired_state(desire()), [], memory, may_start=True)
    assert decision.actions == ()
    assert [slot.rank for _, slot in decision.lost] == [0]


def test_workers_start_only_under_a_lease() -> None:
    without = decide(desired_state(desire()), [], Memory(), may_start=False)
    assert without.actions == ()
    assert isinstance(
        decide(desired_state(desire()), [], without.memory, may_start=True).actions[0], StartWorker
    )


def test_a_generation_without_workers_here_waits_and_loses_none() -> None:
    both = desired_state(desire(ranks=2), desire("b"))
    first = decide(both, [], Memory(), may_start=True, most_starts=1)
    begun = [
        (action.desire.job, action.slot.rank) for action in first.actions if isinstance(action, StartWorker)
    ]
    assert (begun, len(first.actions)) == ([("a", 0)], 1)
    assert "b" not in {job for job, _ in first.memory.generations}
    then = decide(both, [view()], first.memory, may_start=True)
    started = [(a.desire.job, a.slot.rank) for a in then.actions if isinstance(a, StartWorker)]
    assert started == [("a", 1), ("b", 0)]
    assert not first.lost
    assert not then.lost


def test_decisions_do_not_depend_on_the_order_of_entries() -> None:
    entries = [desire(generation=1), desire(generation=2, goal="prepare"), desire("b", 1, epoch=3)]
    forwards = decide(desired_state(*entries), [], Memory(), may_start=True)
    backwards = decide(desired_state(*reversed(entries)), [], Memory(), may_start=True)
    assert {str(action) for action in forwards.actions} == {str(action) for action in backwards.actions}
    assert forwards.memory.epoch == backwards.memory.epoch
    assert forwards.memory.generations["a", "training"].generation == 2


@dataclass
class Node:
    """An agent reduced to its decisions. Its workers can die, and it can restart."""

    memory: Memory = field(default_factory=Memory)
    workers: dict[str, WorkerView] = field(default_factory=dict)
    newest: tuple[int, int] | None = None
    started: list[tuple[str, int, int]] = field(default_factory=list)

    def obey(self, state: DesiredState, *, may_start: bool) -> None:
        if is_stale(state, self.newest, self.memory):
            return
        self.newest = (state.epoch, state.version)
        highest_before = {job: newest.generation for (job, _), newest in self.memory.generations.items()}
        decision = decide(state, list(self.workers.values()), self.memory, may_start=may_start)
        assert decision.memory.epoch >= self.memory.epoch
        self.memory = decision.memory
        for action in decision.actions:
            match action:
                case StartWorker(entry, slot):
                    assert entry.generation >= highest_before.get(entry.job, 0), (
                        "an old generation was started"
                    )
                    name = (entry.job, entry.generation, slot.rank)
                    assert name not in self.started, "a worker was started twice"
                    self.started.append(name)
                    key = f"{entry.job}-{entry.generation}-{slot.rank}"
                    self.workers[key] = WorkerView(
                        key,
                        entry.job,
                        "training",
                        entry.generation,
                        slot.rank,
                        True,
                        entry.goal,
                        entry.start,
                        True,
                    )
                case SetGoal(key, goal, start):
                    assert goal_rank(goal) >= goal_rank(self.workers[key].goal), "a goal went back"
                    self.workers[key] = replace(self.workers[key], goal=goal, start=start)
                case KillWorker(key, _):
                    self.workers[key] = replace(self.workers[key], alive=False)
                case ForgetWorker(key):
                    assert not self.workers[key].alive
                    del self.workers[key]


@st.composite
def histories(draw: st.DrawFn) -> list[DesiredState]:
    """Draw a history of desired states: generations and goals only grow, and planners succeed each other."""
    epoch, states = 1, []
    live: dict[str, GenerationDesire] = {}
    for version in range(1, draw(st.integers(2, 12))):
        epoch += draw(st.integers(0, 1))
        job = draw(st.sampled_from("ab"))
        current = live.get(job)
        if current is None or draw(st.booleans()):
            number = 1 + (current.generation if current else 0)
            live[job] = desire(job, number, epoch=epoch, goal="prepare", ranks=draw(st.integers(1, 3)))
        else:
            later = draw(st.sampled_from(GOALS[goal_rank(current.goal) :]))
            live[job] = replace(current, goal=later, epoch=epoch)
        shown = [entry for entry in live.values() if draw(st.integers(0, 5))]
        states.append(DesiredState(epoch, version, tuple(shown)))
    return states


@given(data=st.data())
def test_lost_doubled_and_reordered_answers_start_each_worker_once(data: st.DataObject) -> None:
    history = data.draw(histories())
    deliveries = data.draw(st.lists(st.sampled_from(history), min_size=1, max_size=30))
    node = Node()
    for state in deliveries:
        happening = data.draw(
            st.sampled_from(["nothing", "no lease", "a worker dies", "the agent restarts", "all lost"])
        )
        if happening == "a worker dies" and node.workers:
            key = data.draw(st.sampled_from(sorted(node.workers)))
            node.workers[key] = replace(node.workers[key], alive=False)
        if happening == "the agent restarts":
            node.newest = None
        if happening == "all lost":
            node.workers.clear()
        node.obey(state, may_start=happening != "no lease")
    # The last desired state, once it arrives, is what runs.
    last = history[-1]
    node.obey(last, may_start=True)
    for entry in last.generations:
        for slot in entry.workers:
            assert entry.goal == "stop" or (entry.job, entry.generation, slot.rank) in node.started, (
                "it never ran"
            )
    for worker in node.workers.values():
        if worker.alive:
            entry = next(item for item in last.generations if item.job == worker.job)
            assert worker.generation == entry.generation
            assert worker.goal == entry.goal
