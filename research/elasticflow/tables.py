"""Numbers of the ElasticFlow paper and of its authors' simulator that are in no file of the traces folder, or
are needed without it, each with its source."""

from __future__ import annotations

#: Figure 9, deadline satisfactory ratio of 1,000 synthetic jobs by GPUs. Source: artifact, plot_figure.
FIGURE_9: dict[int, dict[str, float]] = {
    64: {"EDF": 0.026, "EDF+AdmissionControl": 0.203, "EDF+ElasticScaling": 0.452, "ElasticFlow": 0.926},
    128: {"EDF": 0.118, "EDF+AdmissionControl": 0.326, "EDF+ElasticScaling": 0.835, "ElasticFlow": 0.949},
    256: {"EDF": 0.118, "EDF+AdmissionControl": 0.658, "EDF+ElasticScaling": 0.939, "ElasticFlow": 0.944},
}

MEAN_EFFICIENCY, PEAK_EFFICIENCY = "mean CE, first 100 h", "peak CE"
MAKESPAN, ON_TIME = "makespan (h)", "on time"
_FIGURE_10_SERIES = ("EDF", "Gandiva", "Tiresias", "Themis", "Chronus", "ElasticFlow")

#: Figure 10, 100 synthetic jobs with loose deadlines on 128 GPUs. Source: logs shipped with the artifact.
FIGURE_10: dict[str, dict[str, float]] = {
    metric: {
        series: value for series, value in zip(_FIGURE_10_SERIES, values, strict=True) if value is not None
    }
    for metric, values in {
        MEAN_EFFICIENCY: (0.058, 0.134, 0.131, 0.131, 0.039, 0.167),
        PEAK_EFFICIENCY: (0.20, 0.24, 0.26, 0.26, 0.12, 0.30),
        MAKESPAN: (377.3, 205.6, 205.6, 205.7, 268.3, 182.3),
        ON_TIME: (0.92, 0.79, 1.0, 0.99, None, 1.0),
    }.items()
}

SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90)

#: Figure 11a, deadline satisfactory ratio by the share of best-effort jobs in percent. Source: artifact,
#: plot_figure.
FIGURE_11A: dict[str, tuple[float, ...]] = {
    "EDF": (0.09, 0.10, 0.15, 0.15, 0.23, 0.28, 0.44, 0.79, 0.95),
    "Gandiva": (0.25, 0.24, 0.20, 0.18, 0.19, 0.17, 0.18, 0.18, 0.16),
    "Tiresias": (0.46, 0.46, 0.44, 0.42, 0.43, 0.41, 0.44, 0.50, 0.53),
    "Themis": (0.41, 0.40, 0.37, 0.34, 0.36, 0.34, 0.35, 0.42, 0.37),
    "Chronus": (0.42, 0.42, 0.40, 0.37, 0.40, 0.39, 0.42, 0.50, 0.53),
    "ElasticFlow": (0.74, 0.67, 0.67, 0.69, 0.68, 0.76, 0.82, 0.92, 0.95),
}

#: Figure 11b, mean completion time of best-effort jobs: Gandiva's over the policy's. Source: artifact,
#: plot_figure.
FIGURE_11B: dict[str, tuple[float, ...]] = {
    "EDF": (0.05, 0.05, 0.05, 0.05, 0.07, 0.07, 0.08, 0.08, 0.10),
    "Gandiva": (1.0,) * 9,
    "Tiresias": (1.44, 1.39, 1.33, 1.31, 1.26, 1.27, 1.28, 1.30, 1.45),
    "Themis": (1.37, 1.36, 1.34, 1.32, 1.26, 1.27, 1.29, 1.29, 1.46),
    "Chronus": (1.50, 1.45, 1.40, 1.38, 1.29, 1.29, 1.28, 1.29, 1.44),
    "ElasticFlow": (1.60, 1.37, 1.18, 1.11, 1.27, 1.24, 1.19, 1.16, 1.31),
}

#: "On average" in section 6.3 of the paper: mean over ten traces of ElasticFlow's ratio over a baseline's.
STATED_MEAN_OF_RATIOS = {"EDF": 12.95, "Gandiva": 2.58, "Tiresias": 2.15, "Themis": 1.76, "Chronus": 1.68}

#: The authors' simulator (pkusys/ElasticFlow 04a0109), unmodified, on the published files: share of SLO jobs
#: on time.
AUTHORS_SIMULATOR: dict[tuple[str, str], dict[str, float]] = {
    ("6b", "128 GPUs, 195 jobs"): {
        "EDF": 17 / 195, "EDF+AdmissionControl": 63 / 195, "Gandiva": 47 / 195, "Tiresias": 90 / 195,
        "Themis": 80 / 195, "EDF+ElasticScaling": 40 / 195, "ElasticFlow": 146 / 195,
    },
    ("8a", "64 T4 GPUs, 195 jobs"): {
        "EDF": 23 / 195, "EDF+AdmissionControl": 0.410, "Gandiva": 18 / 195, "Tiresias": 56 / 195,
        "ElasticFlow": 142 / 195,
    },
    ("8b", "cluster10"): {
        "EDF": 202 / 260, "EDF+AdmissionControl": 0.827, "Gandiva": 86 / 260, "Tiresias": 124 / 260,
        "EDF+ElasticScaling": 0.981, "ElasticFlow": 250 / 260,
    },
    ("8b", "cluster06"): {
        "EDF": 0.108, "EDF+AdmissionControl": 0.551, "Gandiva": 0.392, "Tiresias": 0.482,
        "ElasticFlow": 1528 / 2396,
    },
    ("8b", "cluster01"): {
        "EDF": 298 / 1595, "EDF+AdmissionControl": 0.375, "Gandiva": 259 / 1595, "Tiresias": 787 / 1595,
    },
    ("9", "64 GPUs"): {
        "EDF": 0.020, "EDF+AdmissionControl": 0.212, "EDF+ElasticScaling": 0.263, "ElasticFlow": 0.933,
    },
    ("9", "128 GPUs"): {
        "EDF": 0.124, "EDF+AdmissionControl": 0.324, "EDF+ElasticScaling": 0.729, "ElasticFlow": 0.956,
    },
    ("9", "256 GPUs"): {
        "EDF": 0.216, "EDF+AdmissionControl": 0.609, "EDF+ElasticScaling": 0.899, "ElasticFlow": 0.962,
    },
    ("10", ON_TIME): {"EDF": 0.92, "Gandiva": 0.79, "Tiresias": 1.0, "ElasticFlow": 1.0},
    **{
        ("11a", f"{share}%"): dict(zip(("ElasticFlow", "Tiresias", "Gandiva", "EDF"), row, strict=True))
        for share, row in {
            10: (0.84, 0.51, 0.30, 0.10), 30: (0.85, 0.54, 0.31, 0.11), 50: (0.88, 0.51, 0.31, 0.32),
            70: (0.91, 0.53, 0.29, 0.96), 90: (0.92, 0.54, 0.38, 1.0),
        }.items()
    },
}  # fmt: skip

#: The authors' simulator with one change: each arrival is decided on separately, not all of an instant
#: together.
AUTHORS_SIMULATOR_ONE_BY_ONE: dict[tuple[str, str], float] = {
    ("6b", "128 GPUs, 195 jobs"): 176 / 195,
    ("8a", "64 T4 GPUs, 195 jobs"): 153 / 195,
    ("8b", "cluster10"): 250 / 260,
}

#: Wall time of the authors' simulator for ElasticFlow on two cores, in seconds.
AUTHORS_WALL_SECONDS = {"testbed_195job": 7.0, "t4_195job": 15.0, "cluster10": 13.0, "cluster06": 262.0}
#: Seconds after which it was stopped unfinished.
AUTHORS_STOPPED_AFTER_SECONDS = {"cluster01": 1500.0}

#: Clusters on which a place of a figure was probably simulated, if the published bars are impossible on the
#: stated one.
LIKELY_CLUSTER: dict[tuple[str, str], tuple[int, int]] = {("8b", "philly"): (4, 8)}
