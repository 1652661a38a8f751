"""Records of a job: metrics, logs and files, in order and in bounded pieces."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from scheduling.models import Artifact, JobMetric, LogChunk
from tests import factories as make
from tests.api.conftest import World


def get(world: World, path: str) -> Any:
    return world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/{path}")


def test_an_iteration_trained_again_counts_once(world: World) -> None:
    JobMetric.objects.all().delete()
    for generation, iterations in ((1, (1, 2, 3)), (2, (3, 4))):
        for iteration in iterations:
            values = {"loss": float(generation), "accuracy": 0.5}
            make.JobMetricFactory.create(
                job=world.job, generation=generation, iteration=iteration, values=values
            )
    rows = get(world, "metrics/?names=loss").json()["results"]
    assert [(row["iteration"], row["values"]) for row in rows] == [
        (1, {"loss": 1.0}), (2, {"loss": 1.0}), (3, {"loss": 2.0}), (4, {"loss": 2.0}),
    ]  # fmt: skip
    assert [row["iteration"] for row in get(world, "metrics/?after_iteration=2").json()["results"]] == [3, 4]


def test_metrics_are_paged_in_the_order_of_training(world: World) -> None:
    JobMetric.objects.all().delete()
    for iteration in range(5):
        make.JobMetricFactory.create(job=world.job, iteration=iteration)
    client = world.client(world.viewer)
    seen, address = [], f"/api/v1/jobs/{world.job.pk}/metrics/?page_size=2"
    while address:
        page = client.get(address).json()
        seen += [row["iteration"] for row in page["results"]]
        address = page["next"]
    assert seen == [0, 1, 2, 3, 4]


def test_logs_continue_after_the_given_position(world: World) -> None:
    first = get(world, "logs/").json()
    assert [chunk["text"] for chunk in first["results"]] == ["first\nsecond\n"]
    make.LogChunkFactory.create(job=world.job, rank=1, text="third\n")
    later = get(world, f"logs/?after={first['next_after']}").json()
    assert [chunk["text"] for chunk in later["results"]] == ["third\n"]
    assert get(world, f"logs/?after={later['next_after']}").json()["next_after"] == later["next_after"]
    assert [chunk["rank"] for chunk in get(world, "logs/?rank=1").json()["results"]] == [1]


@pytest.mark.parametrize(
    ("lines", "text"), [(1, "d"), (2, "c\nd"), (3, "b\nc\nd"), (4, "a\nb\nc\nd"), (99, "a\nb\nc\nd")]
)
def test_the_tail_counts_lines(world: World, lines: int, text: str) -> None:
    LogChunk.objects.all().delete()
    for piece in ("a\n", "b\nc\n", "d"):
        make.LogChunkFactory.create(job=world.job, text=piece)
    assert "".join(chunk["text"] for chunk in get(world, f"logs/?tail={lines}").json()["results"]) == text


def test_one_answer_holds_so_much_of_a_log_and_no_more(world: World) -> None:
    for _ in range(3):
        make.LogChunkFactory.create(job=world.job, text="x" * 700_000)
    page = get(world, "logs/").json()
    assert (len(page["results"]), page["more"]) == (2, True)
    assert get(world, f"logs/?after={page['next_after']}").json()["more"] is True


def test_an_artifact_is_streamed_with_its_length_and_digest(world: World) -> None:
    content = b"weights" * 1000
    digest = hashlib.sha256(content).hexdigest()
    Artifact.objects.update(sha256=digest)
    answer = get(world, "artifacts/weights.pt/")
    assert answer.streaming
    assert b"".join(answer.streaming_content) == content
    assert answer.headers["Content-Length"] == str(len(content))
    assert answer.headers["X-Content-SHA256"] == digest
    assert "weights.pt" in answer.headers["Content-Disposition"]


@pytest.mark.parametrize(
    "uri",
    ["/etc/passwd", "jobs/{other}/artifacts/1/weights.pt", "jobs/{own}/../../../etc/passwd", "s3://bucket/x"],
)
def test_an_address_outside_the_jobs_own_folder_is_not_believed(world: World, uri: str) -> None:
    Artifact.objects.update(uri=uri.format(other=world.foreign_job.pk, own=world.job.pk))
    assert get(world, "artifacts/weights.pt/").status_code == 404


def test_a_full_address_below_the_store_is_believed(world: World, settings: Any) -> None:
    Artifact.objects.update(uri=f"{settings.CHECKPOINT_URL}/jobs/{world.job.pk}/artifacts/1/weights.pt")
    assert get(world, "artifacts/weights.pt/").status_code == 200


def test_bytes_that_are_gone_are_a_404(world: World) -> None:
    Artifact.objects.update(uri=f"jobs/{world.job.pk}/artifacts/9/weights.pt")
    assert get(world, "artifacts/weights.pt/").status_code == 404
    assert get(world, "artifacts/other.pt/").status_code == 404


def test_the_curve_holds_measured_levels(world: World) -> None:
    curve = get(world, "curve/").json()
    assert [level["gpus"] for level in curve["levels"]] == [1, 2, 4, 8]
    assert (curve["emulated"], curve["complete"]) == (True, True)
