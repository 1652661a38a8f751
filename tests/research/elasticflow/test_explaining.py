"""A value beyond its band is explained only by causes that its own figures support."""

from __future__ import annotations

from dataclasses import replace

from research.elasticflow.explaining import explained
from research.elasticflow.rows import Variant
from research.elasticflow.specs import ElasticFlowSpec
from tests.research.elasticflow.small import context, result, row

PLACE = "64 T4 GPUs, 195 jobs"


def causes(rows, which=0, **results):
    published = {
        (figure_row.figure, figure_row.series, figure_row.x): figure_row.published for figure_row in rows
    }
    return {
        explanation.cause: explanation.evidence
        for explanation in explained(rows, context(published, **results))[which].explanations
    }


def test_a_value_within_its_band_needs_no_explanation():
    assert causes([row("tiresias", "Tiresias", 0.30, 0.34)]) == {}


def test_a_value_that_nothing_accounts_for_stays_unexplained():
    assert causes([row("fifo", "FIFO", 0.9, 0.3)]) == {}


def test_policy_text_is_a_cause_only_if_the_published_code_is_closer():
    text = row("edf", "EDF", 0.12, 0.67, variant=Variant.AS_DESCRIBED)
    near = row("edf_artifact", "EDF", 0.12, 0.118, variant=Variant.AS_PUBLISHED)
    name = "The published code is not what the text describes"
    assert "the code's rule gives 0.118 here, the text's 0.670" in causes([text, near])[name]
    assert name not in causes([text, replace(near, ours=0.7)])


def test_one_by_one_is_a_cause_if_the_authors_simulator_confirms_it():
    flow = row("elasticflow", "ElasticFlow", 0.667, 0.79, variant=Variant.ONE_BY_ONE)
    evidence = causes([flow])["Newcomers are decided one by one"]
    assert evidence == "the authors' simulator with this alone changed gives 0.785; ours 0.790"
    assert "Newcomers are decided one by one" not in causes([replace(flow, ours=0.5)])


def test_without_such_a_run_batches_of_a_slot_are_the_evidence():
    flow = row("elasticflow", "ElasticFlow", 0.6, 0.8, variant=Variant.ONE_BY_ONE, x="cluster07", figure="8b")
    batch = replace(flow, variant=Variant.TOGETHER, ours=0.7)
    evidence = causes([flow, batch])["Newcomers are decided one by one"]
    assert evidence == "deciding the newcomers of a slot together gives 0.700 here, one by one 0.800"


def test_cause_names_a_value_that_the_authors_simulator_contradicts():
    evidence_by_cause = causes([row("edf_artifact", "EDF", 0.118, 0.22, authors=0.216)])
    assert (
        "authors' simulator 0.216" in evidence_by_cause["The authors' simulator gives another value as well"]
    )


def test_hardware_measurements_are_named_as_a_cause():
    evidence_by_cause = causes([row("tiresias", "Tiresias", 0.2, 0.4, figure="6b", authors=0.39)])
    assert "the hardware gave 0.200" in evidence_by_cause["Measured on hardware"]


def test_other_deadline_draws_are_a_cause_with_their_spread():
    ran = result(120, 200, trace="elasticflow_generator:jobs=1000")
    drawn = row(
        "edf_elastic",
        "EDF+ElasticScaling",
        0.45,
        0.65,
        figure="9",
        x="64 GPUs",
        spread=(0.4, 0.7),
        result=ran,
    )
    name = "Other draws of deadlines"
    assert causes([drawn])[name].endswith("the published 0.450 lies inside")
    assert "the spread over draws is not known" in causes([replace(drawn, spread=None)])[name]
    # Nothing of Figure 10 is drawn without a seed.
    assert name not in causes([replace(drawn, figure="10")])


def test_built_in_models_are_named_as_a_cause():
    drawn = row(
        "edf_elastic", "EDF+ElasticScaling", 0.45, 0.65, figure="9", result=result(1, 2, trace="elasticflow")
    )
    assert causes([drawn])["Other models"] == "workload elasticflow"
    assert "Other draws of deadlines" not in causes([drawn])


def test_another_cluster_is_a_cause_only_where_it_comes_nearer():
    spec = ElasticFlowSpec("tiresias", "philly_103959", 32, 8, 60.0)
    drawn = row("tiresias", "Tiresias", 0.32, 0.465, figure="8b", x="philly", spec=spec)
    small = replace(spec, servers=4, gpus_per_server=8)
    assert "Probably another cluster" in causes([drawn], by_spec={small: result(66, 200)})
    assert "Probably another cluster" not in causes([drawn], by_spec={small: result(2, 200)})


def test_reaching_the_requested_size_bound_means_little_waiting():
    free = row("themis", "Themis", 0.33, 0.465, result=result(93, 200, slo_jobs_possible_as_requested=94))
    assert "at most 0.470 are possible" in causes([free])["Hardly anybody waits here"]
    waiting = replace(free, result=result(93, 200, slo_jobs_possible_as_requested=150))
    assert "Hardly anybody waits here" not in causes([waiting])
