"""Examples of the OpenAPI document."""

from typing import Any

from drf_spectacular.utils import OpenApiExample

_JOB: dict[str, Any] = {
    "function": "image-classifier",
    "project": "vision",
    "name": "nightly classifier",
    "labels": {"team": "search"},
    "hyperparameters": {"global_batch_size": 256, "learning_rate": 0.1},
    "termination": {"max_iterations": 500, "target": {"metric": "accuracy", "at_least": 0.95}},
}

JOB_EXAMPLES = [
    OpenApiExample("Hard deadline", request_only=True, value={**_JOB, "deadline_seconds": 1200}),
    OpenApiExample(
        "Best effort",
        request_only=True,
        value={
            "function": "image-classifier@3",
            "hyperparameters": {"global_batch_size": 64},
            "termination": {"max_iterations": 100},
        },
    ),
    OpenApiExample(
        "Declined with an offer",
        response_only=True,
        status_codes=["201"],
        value={
            "id": "k3vq7mzt9w2a",
            "project": "vision",
            "owner": "ada",
            "name": "nightly classifier",
            "labels": {"team": "search"},
            "function": {
                "id": 7,
                "name": "image-classifier",
                "version": 3,
                "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                "entry": "image_classifier:ImageClassifier",
            },
            "hyperparameters": {"global_batch_size": 256, "learning_rate": 0.1},
            "termination": {"max_iterations": 500, "target": None},
            "service_class": "slo",
            "deadline_at": "2030-01-31T14:00:00Z",
            "data": [],
            "checkpoint_seconds": 60.0,
            "seed": 0,
            "state": "declined",
            "promised": False,
            "at_risk": False,
            "late": False,
            "paused_by_owner": False,
            "promise_outcome": "none",
            "void_reason": None,
            "submitted_at": "2030-01-31T13:40:00Z",
            "decided_at": "2030-01-31T13:40:00.084Z",
            "started_at": None,
            "finished_at": "2030-01-31T13:40:00.084Z",
            "iterations_done": 0,
            "progress": 0.0,
            "iterations_per_second": 0.0,
            "gpus": 0,
            "gpu_kind": "emulated-gpu",
            "emulated": True,
            "planned_start_at": None,
            "planned_finish_at": None,
            "slack_seconds": None,
            "verdict": {
                "decision": "declined",
                "reason_code": "capacity",
                "reason": "Needs 8 GPUs from 13:42 to 14:00, where 4 are free of promises.",
                "minimum_satisfactory_share": [],
                "planned_start_at": None,
                "planned_finish_at": None,
                "slack_seconds": None,
                "counts_on": "",
                "missing_gpus": 4,
                "offer": {
                    "deadline_at": "2030-01-31T14:32:00Z",
                    "valid_until": "2030-01-31T13:42:00Z",
                    "deadline_seconds": 3005.0,
                },
                "decision_id": 812,
                "needs_profiling": False,
            },
            "failure": None,
            "resubmission_of": None,
            "final_metrics": None,
        },
    ),
]
