"""The choice among all planners is never slower than a planner's own plan, and keeps the job's limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communication.combined.choosing import PlanChoice, choose
from communication.combined.grouping import others
from communication.combined.plan import GroupPlan
from communication.combined.question import PLANNERS, PlanQuestion
from communication.cupcake.plan import plan_fusion
from communication.espresso.planner import plan_compression
from communication.library.codecs import cpu_codec, gpu_codec
from communication.library.models import measured_model
from communication.profiles.codec import Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.densification import Densification
from communication.zen.plan import plan_sparse
from communication.zen.profile import SparsityProfile

LINKS = LinkProfile(LinkRate(150e-6, 3.125e9), LinkRate(20e-6, 50e9))
CODECS = (gpu_codec("random-k"), gpu_codec("ef-signsgd"), cpu_codec("ef-signsgd"))
FOUR_SERVERS = PlacementShape(4, 2)
TABLE = SparsityProfile("tensor 3", 64_000_000, 64, Densification(0.01, 0.6), rows=True)


def recommender() -> ModelProfile:
    """Return a model with a table of 64 million elements; the table's gradient is ready second to last."""
    return ModelProfile.unnamed(
        "recommender",
        np.array([4_000_000, 1_000, 2_000_000, 64_000_000, 500_000]),
        np.array([0.002, 0.001, 0.002, 0.004, 0.003]),
        0.01,
    )


def question(**changes: object) -> PlanQuestion:
    usual = PlanQuestion("job", measured_model("LSTM", 0.05), FOUR_SERVERS, LINKS, codecs=CODECS)
    return replace(usual, **changes)  # type: ignore[arg-type]


def best_seconds(choice: PlanChoice, planner: str) -> float:
    """Return the best prediction of a planner."""
    return min(
        candidate.predicted.iteration_seconds
        for candidate in (choice.chosen, *choice.beaten)
        if candidate.planner == planner
    )


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("model", [pytest.param("LSTM", marks=pytest.mark.slow), "VGG16"])
@pytest.mark.parametrize("placement", [FOUR_SERVERS, PlacementShape(1, 4)])
def test_the_chosen_plan_is_the_fastest_candidate(model: str, lossy: bool, placement: PlacementShape) -> None:
    plan_question = question(model=measured_model(model, 0.05), lossy=lossy, placement=placement)
    choice = choose(plan_question)
    chosen = choice.chosen.predicted.iteration_seconds
    assert {candidate.planner for candidate in (choice.chosen, *choice.beaten)} == set(PLANNERS) - {"zen"}
    assert chosen <= best_seconds(choice, "dense") + 1e-9
    codecs = CODECS if lossy else ()
    assert (
        chosen
        <= plan_fusion(plan_question.model, placement, LINKS, codecs).predicted.iteration_seconds + 1e-9
    )
    for codec in codecs:
        options = plan_compression(plan_question.model, placement, LINKS, {codec.device: codec})
        assert chosen <= options.predicted.iteration_seconds + 1e-9
    assert [candidate.predicted.iteration_seconds for candidate in choice.beaten] == sorted(
        candidate.predicted.iteration_seconds for candidate in choice.beaten
    )
    assert choice.speedup >= 1.0


@pytest.fixture(scope="module")
def lossy_choice() -> PlanChoice:
    return choose(question(lossy=True))


def test_lossy_codecs_are_used_only_if_the_job_allows_them(
    lossy_choice: PlanChoice,
) -> None:
    for plan_question in (
        question(),
        question(lossy=True, codec_names=()),
        question(lossy=False, codec_names=("dgc",)),
    ):
        choice = choose(plan_question)
        assert all(
            candidate.lossless and candidate.codec == "none" for candidate in (choice.chosen, *choice.beaten)
        )
    assert not lossy_choice.chosen.lossless
    assert lossy_choice.speedup > 1.3
    named = choose(question(lossy=True, codec_names=("ef-signsgd",)))
    assert {candidate.codec for candidate in (named.chosen, *named.beaten)} <= {"none", "ef-signsgd"}


def test_plans_beyond_the_free_memory_are_rejected(lossy_choice: PlanChoice) -> None:
    free = lossy_choice
    none = choose(question(lossy=True, memory_bytes=0))
    assert (none.chosen.planner, none.beaten) == ("dense", ())
    assert set(none.too_large) == {"cupcake", "espresso", "combined"}
    less = choose(question(lossy=True, memory_bytes=free.chosen.buffer_bytes - 1))
    assert less.chosen.buffer_bytes < free.chosen.buffer_bytes
    assert (
        best_seconds(less, "dense")
        >= less.chosen.predicted.iteration_seconds
        >= free.chosen.predicted.iteration_seconds
    )


def test_sparse_gradients_go_to_zen_and_the_rest_to_another_planner() -> None:
    """On sixteen servers gathering rows costs more than Zen, which beats every plan without it."""
    plan_question = question(
        model=recommender(), sparse=(TABLE,), placement=PlacementShape(16, 1), lossy=True
    )
    choice = choose(plan_question)
    assert choice.chosen.planner == "combined"
    assert choice.chosen.sparse is not None
    assert isinstance(choice.chosen.rest, GroupPlan)
    assert set(choice.chosen.messages) == {"sparse", "rest"}
    zen = plan_sparse("job", plan_question.model, plan_question.sparse, plan_question.placement, LINKS)
    assert choice.chosen.predicted.iteration_seconds < zen.predicted.iteration_seconds
    assert best_seconds(choice, "zen") == zen.predicted.iteration_seconds < best_seconds(choice, "dense")


def test_no_dense_plan_includes_gradients_kept_as_rows() -> None:
    many = question(model=recommender(), sparse=(TABLE,), placement=PlacementShape(16, 1), lossy=True)
    choice = choose(many)
    planned = [candidate for candidate in (choice.chosen, *choice.beaten) if candidate.rest is not None]
    assert {candidate.planner for candidate in planned} == {"cupcake", "espresso", "combined"}
    assert all(candidate.sparse is not None for candidate in planned)
    # Also if all rows are touched, or without Zen.
    dense = replace(TABLE, densification=Densification(1.0, 0.0))
    dense_choice = choose(replace(many, sparse=(dense,)))
    without = choose(replace(many, planners=("dense", "cupcake")))
    for plan_question, candidate in (
        (replace(many, sparse=(dense,)), dense_choice.chosen),
        *((many, alternative) for alternative in (without.chosen, *without.beaten)),
    ):
        rest = others(plan_question, candidate)
        assert rest is not None
        assert TABLE.tensor not in rest.tensor_names


def test_a_sparse_gradient_without_rows_may_join_the_dense_plan() -> None:
    """Compressed to a hundredth it is smaller than its rows; without codecs Zen's exchange is smaller."""
    free = replace(TABLE, rows=False)
    lossy = question(model=recommender(), sparse=(free,), placement=PlacementShape(16, 1), lossy=True)
    whole = replace(lossy, sparse=())
    with_sparse, without = choose(lossy), choose(whole)
    for planner in ("espresso", "cupcake"):
        assert with_sparse.chosen.predicted.iteration_seconds <= best_seconds(without, planner)
    exact = choose(replace(lossy, lossy=False))
    assert exact.chosen.sparse is not None
    assert exact.chosen.predicted.iteration_seconds <= best_seconds(
        choose(replace(whole, lossy=False)), "espresso"
    )
    # Without a plan it is all-reduced like the other gradients.
    assert best_seconds(exact, "dense") == pytest.approx(best_seconds(without, "dense"))
    as_rows = choose(replace(lossy, sparse=(TABLE,), planners=("dense",)))
    assert best_seconds(as_rows, "dense") < best_seconds(exact, "dense")


def test_plans_of_the_rest_omit_sparse_gradients_and_keep_times() -> None:
    rest = question(model=recommender()).beside({TABLE.tensor})
    assert rest is not None
    assert rest.tensor_names == ("tensor 0", "tensor 1", "tensor 2", "tensor 4")
    assert rest.gap_seconds == pytest.approx([0.002, 0.001, 0.002, 0.007])
    last = replace(TABLE, tensor="tensor 4", elements=500_000, width=50)
    rest_without_last = question(model=recommender()).beside({last.tensor})
    assert rest_without_last is not None
    assert rest_without_last.backward_seconds == pytest.approx(0.009)


def test_an_empty_gradient_excludes_no_planner() -> None:
    full = recommender()
    empty = replace(
        full,
        tensor_names=("nothing", *full.tensor_names),
        elements=np.array([0, *full.elements]),
        gap_seconds=np.array([0.0, *full.gap_seconds]),
    )
    expected, choice = (choose(question(model=item, lossy=True)) for item in (full, empty))
    assert {item.planner for item in (choice.chosen, *choice.beaten)} == set(PLANNERS) - {"zen"}
    for planner in set(PLANNERS) - {"zen"}:
        assert best_seconds(choice, planner) == best_seconds(expected, planner)
    rest = others(question(model=empty, lossy=True), choice.chosen)
    assert rest is not None
    assert rest.tensor_names == full.tensor_names


def test_half_precision_halves_the_bytes_of_dense_exchanges_only() -> None:
    """Under a plan all gradients are sent as FP32."""
    single, half = (choose(question(lossy=True, dense_element_bytes=size)) for size in (4, 2))
    assert half.dense.predicted.bytes_between == single.dense.predicted.bytes_between / 2
    assert half.dense.predicted.iteration_seconds < single.dense.predicted.iteration_seconds
    assert half.chosen.predicted == single.chosen.predicted
    assert half.speedup < single.speedup


def test_no_iteration_is_predicted_to_end_before_its_computation() -> None:
    fast = LinkProfile(LinkRate(0.0, 1e15), LinkRate(0.0, 1e15))
    last = replace(TABLE, tensor="tensor 4", elements=500_000, width=50)
    choice = choose(question(model=recommender(), sparse=(last,), links=fast, lossy=True))
    for candidate in (choice.chosen, *choice.beaten):
        assert candidate.predicted.iteration_seconds >= recommender().compute_seconds


def test_one_gpu_gets_the_dense_plan() -> None:
    choice = choose(question(placement=PlacementShape(1, 1), lossy=True))
    assert (choice.chosen.planner, choice.beaten, choice.speedup) == ("dense", (), 1.0)


def test_only_executable_plans_are_made() -> None:
    choice = choose(question(lossy=True, planners=("dense", "cupcake")))
    assert {candidate.planner for candidate in (choice.chosen, *choice.beaten)} == {"dense", "cupcake"}


def test_equal_questions_have_equal_answers_and_others_other_digests(
    lossy_choice: PlanChoice,
) -> None:
    plan_question = question(lossy=True)
    first, again = choose(plan_question), lossy_choice
    assert first.chosen.messages == again.chosen.messages
    assert first.chosen.digest == again.chosen.digest
    others = [
        question(),
        question(lossy=True, codec_names=("random-k",)),
        question(lossy=True, links=replace(LINKS, share=0.5)),
        question(lossy=True, placement=PlacementShape(2, 2)),
        question(lossy=True, codecs=CODECS[:1]),
        question(lossy=True, memory_bytes=5),
        question(lossy=True, job="another"),
        question(lossy=True, planners=("dense",)),
        question(lossy=True, model=measured_model("LSTM", 0.06)),
    ]
    digests = {item.digest for item in (plan_question, *others)}
    assert len(digests) == 1 + len(others)
    assert again.question == plan_question.digest


def test_a_model_of_thousands_of_tensors_is_planned_in_groups() -> None:
    many = ModelProfile.unnamed("many", np.full(3000, 50_000), np.full(3000, 1e-5), 0.01)
    choice = choose(question(model=many, lossy=True, codecs=(gpu_codec("random-k"),)))
    assert "espresso" not in {candidate.planner for candidate in (choice.chosen, *choice.beaten)}
    assert choice.chosen.planner in ("cupcake", "combined")


def test_an_invalid_question_is_refused() -> None:
    with pytest.raises(ValueError, match="no tensor 'tensor 3' of 64000000 elements"):
        question(sparse=(TABLE,))
    with pytest.raises(ValueError, match="two sparsity profiles"):
        question(model=recommender(), sparse=(TABLE, TABLE))
    with pytest.raises(ValueError, match="no planner 'magic'"):
        question(planners=("magic",))
    with pytest.raises(ValueError, match="must not be negative"):
        question(memory_bytes=-1)


def test_codecs_are_grouped_by_name_over_devices() -> None:
    allowed = question(lossy=True).allowed_codecs
    assert {name: [codec.device for codec in codecs] for name, codecs in allowed.items()} == {
        "random-k": [Device.GPU],
        "ef-signsgd": [Device.GPU, Device.CPU],
    }
