"""Bounds on what workers and agents may report. Both sides of every message hold to these."""

from __future__ import annotations

from punctual.names import name_problem

#: Whole numbers that JSON readers everywhere keep exactly: iterations, bytes, offsets, versions.
LARGEST_COUNT = 2**53 - 1
#: Generations and ranks are kept in four bytes.
LARGEST_NUMBER = 2**31 - 1
LARGEST_GPU_INDEX = 1023
LARGEST_GPU_COUNT = 65_536
#: Of one generation, and what a function may declare: as the decision core has it, which imports nothing.
MOST_WORKERS = 4096

#: Iterations per second that a plan can be made of: one in eleven days, a million a second.
SLOWEST_RATE = 1e-6
FASTEST_RATE = 1e6
#: What one change of GPUs may claim to have cost. The control plane gives up changes that take longer.
LONGEST_PAUSE_SECONDS = 3600.0
#: The function's own part of one iteration.
LONGEST_TRAIN_SECONDS = 1e6
#: How long ago something happened: about thirty years.
LONGEST_AGE_SECONDS = 1e9

#: Eight of them are those of mixture-of-experts layers and their tiers, three those of tasks.
METRICS_OF_AN_ITERATION = 107
METRIC_NAME_CHARACTERS = 100
TEXT_CHARACTERS = 20_000
#: What is told of a model's gradients. Of one with more nothing is, and it trains as it did.
TENSORS_OF_A_MODEL = 4096
SPARSE_TENSORS_OF_A_MODEL = 256
TENSOR_NAME_CHARACTERS = 200
#: A record of them as it travels: agents take lines of 1 MiB.
COMMUNICATION_RECORD_BYTES = 1 << 19
ITERATIONS_OF_A_WINDOW = 256
SPANS_OF_A_WINDOW = 512
#: What is reported of mixture-of-experts layers. Of a model with more, the first layers that fit are.
MOE_LAYERS_OF_A_MODEL = 64
EXPERTS_OF_A_LAYER = 256
HOSTS_OF_AN_EXPERT = 64
#: Hosts of all experts together.
PLACES_OF_EXPERTS = 1 << 15
DECISIONS_OF_A_RECORD = 32
#: Of all layers in one report of a deployment; of a model with more, the first layers that fit.
SERVED_EXPERTS = 2048
#: Of one request to a replica of a deployment, and of one call of `predict`.
SERVING_BODY_BYTES = 1 << 20
SERVING_INPUTS = 256
#: How long the first request of a batch may wait for others, and how long any may wait for its answer.
LONGEST_SERVING_WAIT_SECONDS = 1.0
SERVING_ANSWER_SECONDS = 30.0
ARTIFACTS_OF_A_JOB = 1000
ARTIFACT_NAME_CHARACTERS = 200
DIGEST_CHARACTERS = 64

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """At most `characters` of `text`, without what cannot be stored or sent: NUL, and halves of surrogate
    pairs."""
    return "".join(
        _REPLACEMENT if character == "\0" or "\ud800" <= character <= "\udfff" else character
        for character in text[:characters]
    )


def metric_name_problem(name: object) -> str | None:
    """Why `name` cannot be the name of a metric; None where it can.

    A name is a text of 1 to 100 printable characters: no NUL, no line break, nothing that changes the
    direction of the text around it.
    """
    if not isinstance(name, str):
        return f"a metric's name is a text, not {type(name).__name__}"
    if not 1 <= len(name) <= METRIC_NAME_CHARACTERS:
        return f"a metric's name has 1 to {METRIC_NAME_CHARACTERS} characters, not {len(name)}"
    if (problem := name_problem(name)) is not None:
        return f"a metric's name holds printable characters only, unlike {name!a}: {problem}"
    return None


def artifact_name_problem(name: str) -> str | None:
    """Why `name` (a path below the job's own folder) cannot be the name of an artifact; None where it can."""
    if not 1 <= len(name) <= ARTIFACT_NAME_CHARACTERS:
        return f"an artifact's name has 1 to {ARTIFACT_NAME_CHARACTERS} characters, not {len(name)}"
    if (problem := name_problem(name)) is not None:
        return f"an artifact's name holds printable characters only, unlike {name[:80]!a}: {problem}"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return f"an artifact's name is a path below the job's folder, unlike {name[:80]!a}"
    return None


#: Reasons of a failure that a worker's launcher gives: it used more than its server lets it.
MEMORY_EXCEEDED = "memory_exceeded"
PROCESSES_EXCEEDED = "processes_exceeded"
#: The reason of a worker whose states of experts wrote more to disk than its server lets it.
DISK_WRITES_EXCEEDED = "disk_writes_exceeded"
#: The reason of a job whose loss stayed NaN or infinite.
NONFINITE = "nonfinite"
#: Of many tensors, how many an event names.
TENSORS_NAMED = 8
#: The reason of a worker that was given a runtime plan which it cannot follow.
PLAN_REFUSED = "plan_refused"
