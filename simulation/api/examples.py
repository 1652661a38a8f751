"""Examples of the OpenAPI document."""

from drf_spectacular.utils import OpenApiExample

STUDY_EXAMPLES = [
    OpenApiExample(
        "A trace under two policies",
        request_only=True,
        value={
            "trace": "elasticflow",
            "policies": ["punctual", "edf"],
            "servers": [16],
            "gpus_per_server": 8,
            "limit_jobs": 200,
            "seed": 1,
        },
    ),
    OpenApiExample(
        "A trace without and with eight inference servers that lend",
        request_only=True,
        value={
            "trace": "elasticflow",
            "policies": ["punctual"],
            "servers": [16],
            "inference_servers": [0, 8],
            "inference_usage": "daily",
            "gpus_per_server": 8,
            "limit_jobs": 200,
        },
    ),
    OpenApiExample(
        "A trace with open and with prudent newcomers",
        request_only=True,
        value={
            "trace": "elasticflow",
            "policies": ["elasticflow"],
            "newcomers": ["open", "prudent"],
            "servers": [4],
            "gpus_per_server": 4,
        },
    ),
    OpenApiExample(
        "The live cluster with two more servers",
        request_only=True,
        value={"source": "live", "policies": ["punctual"], "servers": [4, 6], "with_declined": True},
    ),
]
