"""Limits of workers' and agents' messages. Both sides enforce them."""

from __future__ import annotations

from punctual.names import name_problem

#: Largest integers that every JSON reader keeps exactly: iterations, bytes, offsets, versions.
LARGEST_COUNT = 2**53 - 1
#: Generations and ranks are stored in four bytes.
LARGEST_NUMBER = 2**31 - 1
LARGEST_GPU_INDEX = 1023
LARGEST_GPU_COUNT = 65_536
#: Largest number of workers of a generation, equal to the decision core's, which imports nothing.
MOST_WORKERS = 4096

#: Iterations per second that plans support: from one in eleven days to a million a second.
SLOWEST_RATE = 1e-6
FASTEST_RATE = 1e6
#: Longest reported cost of one change of GPUs. The control plane gives up changes that take longer.
LONGEST_PAUSE_SECONDS = 3600.0
#: The function's own part of one iteration.
LONGEST_TRAIN_SECONDS = 1e6
#: Largest reported age: about thirty years.
LONGEST_AGE_SECONDS = 1e9

#: Including eight of mixture-of-experts layers and their tiers, and three of tasks.
METRICS_OF_AN_ITERATION = 107
METRIC_NAME_CHARACTERS = 100
TEXT_CHARACTERS = 20_000
#: Limits of reports on a model's gradients. A model with more is not reported, and trains as without plans.
TENSORS_OF_A_MODEL = 4096
SPARSE_TENSORS_OF_A_MODEL = 256
TENSOR_NAME_CHARACTERS = 200
#: Size of such a record: agents accept lines of 1 MiB.
COMMUNICATION_RECORD_BYTES = 1 << 19
ITERATIONS_OF_A_WINDOW = 256
SPANS_OF_A_WINDOW = 512
#: Limits of reports on mixture-of-experts layers. For a larger model, the first layers that fit are reported.
MOE_LAYERS_OF_A_MODEL = 64
EXPERTS_OF_A_LAYER = 256
HOSTS_OF_AN_EXPERT = 64
#: Hosts of all experts together.
PLACES_OF_EXPERTS = 1 << 15
DECISIONS_OF_A_RECORD = 32
#: Experts of all layers in one report of a deployment; for a larger model, the first layers that fit.
SERVED_EXPERTS = 2048
#: Limits of one request to a deployment's replica, and of one call of `predict`.
SERVING_BODY_BYTES = 1 << 20
SERVING_INPUTS = 256
#: Longest wait of a batch's first request for others, and of any request for its answer.
LONGEST_SERVING_WAIT_SECONDS = 1.0
SERVING_ANSWER_SECONDS = 30.0
ARTIFACTS_OF_A_JOB = 1000
ARTIFACT_NAME_CHARACTERS = 200
DIGEST_CHARACTERS = 64

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return at most `characters` of `text`, with characters replaced that cannot be stored or sent: NUL, and
    halves of surrogate pairs."""
    return "".join(
        _REPLACEMENT if character == "\0" or "\ud800" <= character <= "\udfff" else character
        for character in text[:characters]
    )


def metric_name_problem(name: object) -> str | None:
    """Return why `name` is not a valid metric name, or None.

    A name is a text of 1 to 100 printable characters: no NUL, no line break, no change of text direction.
    """
    if not isinstance(name, str):
        return f"a metric's name is a text, not {type(name).__name__}"
    if not 1 <= len(name) <= METRIC_NAME_CHARACTERS:
        return f"a metric's name has 1 to {METRIC_NAME_CHARACTERS} characters, not {len(name)}"
    if (problem := name_problem(name)) is not None:
        return f"a metric's name holds printable characters only, unlike {name!a}: {problem}"
    return None


def artifact_name_problem(name: str) -> str | None:
    """Return why `name` (a path below the job's folder) is not a valid artifact name, or None."""
    if not 1 <= len(name) <= ARTIFACT_NAME_CHARACTERS:
        return f"an artifact's name has 1 to {ARTIFACT_NAME_CHARACTERS} characters, not {len(name)}"
    if (problem := name_problem(name)) is not None:
        return f"an artifact's name holds printable characters only, unlike {name[:80]!a}: {problem}"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return f"an artifact's name is a path below the job's folder, unlike {name[:80]!a}"
    return None


#: Failure reasons that a worker's launcher reports: it exceeded its server's limits.
MEMORY_EXCEEDED = "memory_exceeded"
PROCESSES_EXCEEDED = "processes_exceeded"
#: Failure reason of a worker whose states of experts wrote more to disk than its server allows.
DISK_WRITES_EXCEEDED = "disk_writes_exceeded"
#: Failure reason of a job whose loss stayed NaN or infinite.
NONFINITE = "nonfinite"
#: Limit of tensors that an event names.
TENSORS_NAMED = 8
#: Failure reason of a worker that cannot execute its runtime plan.
PLAN_REFUSED = "plan_refused"
