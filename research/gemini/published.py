"""Published values of Gemini's evaluation, by figure, series and place, in seconds, shares or ratios."""

from __future__ import annotations

from research.figure import Published

SOURCE = "Gemini (SOSP 2023; thesis chapter 6), text and figures"

VALUES: dict[tuple[str, str, str], float] = {
    ("probability", "Gemini", "N = 16, m = 2, k = 2"): 0.933,
    ("probability", "Gemini", "N = 16, m = 2, k = 3"): 0.800,
    ("probability", "Ring", "N = 16, m = 2, k = 3"): 0.600,
    ("probability", "Ring below Gemini", "N = 16, m = 2, k = 3"): 0.25,
    ("probability", "Gemini", "N = 4, m = 2, k = 2"): 4 / 6,
    ("probability", "Ring", "N = 4, m = 2, k = 2"): 2 / 6,
    ("interference", "blocking", "GPT-2 40B on p3dn"): 0.101,
    ("interference", "interleaving without a pipeline", "GPT-2 40B on p3dn"): 0.035,
    ("interference", "gemini", "GPT-2 40B on p3dn"): 0.0,
    ("interference", "gemini", "GPT-2 100B on p4d"): 0.0,
    ("recovery", "HighFreq over Gemini, wasted time", "GPT-2 100B, software"): 13.0,
    ("recovery", "Storage over memory, retrieval", "GPT-2 100B"): 250.0,
    ("recovery", "To storage at 20 Gbps", "GPT-2 100B"): 480.0,
    ("recovery", "To storage at 20 Gbps", "MT-NLG, 6.4 TB"): 42.7 * 60,
    ("recovery", "Wasted time from storage", "MT-NLG, 6.4 TB"): 105.0 * 60,
    ("recovery", "Detection", "published constants"): 15.0,
    ("recovery", "One failure", "software"): 7 * 60.0,
    ("recovery", "One failure", "hardware"): 12 * 60.0,
    ("frequency", "Gemini over Strawman", "GPT-2 100B"): 170.0,
    ("frequency", "Gemini over HighFreq", "GPT-2 100B"): 8.0,
    ("frequency", "Storage over memory, checkpoint time", "N = 16, 100 Gbps"): 65.0,
    ("frequency", "Storage over memory, checkpoint time", "N = 16, 400 Gbps"): 250.0,
    ("frequency", "Serialization of HighFreq, share of time", "GPT-2 100B"): 0.145,
    ("effective", "Gemini", "1,000 machines"): 0.91,
    ("effective", "Strawman", "1,000 machines"): 0.0,
    ("effective", "Gemini over HighFreq", "1,000 machines"): 1.54,
    ("effective", "Failures a day", "1,000 machines"): 15.0,
}


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
