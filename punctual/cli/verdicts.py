"""Printing a verdict, and accepting an offer."""

from __future__ import annotations

import sys

from punctual.cli import output
from punctual.client.durations import format_duration
from punctual.client.jobs import Job
from punctual.client.models import TierModes, Verdict


def say_verdict(verdict: Verdict | None, *, subject: str, promised: bool = False) -> None:
    """Print a verdict with its reason, its plan and its offer."""
    if verdict is None or verdict.decision == "pending":
        reason = verdict.reason if verdict is not None and verdict.reason else "the verdict is not known yet"
        output.say(f"{subject}: pending: {reason}")
        return
    style = "green" if verdict.decision == "admitted" else "yellow"
    word = f"{verdict.decision}, promised" if promised else verdict.decision
    output.say(f"{subject}: {word}. {sentence(verdict.reason)}".rstrip(), style=style)
    if verdict.planned_finish_at is not None:
        slack = "" if verdict.slack_seconds is None else f", slack {output.slack_text(verdict.slack_seconds)}"
        start, finish = (
            output.time_text(verdict.planned_start_at),
            output.time_text(verdict.planned_finish_at),
        )
        output.say(f"Planned: {start} to {finish}{slack}")
    if verdict.counts_on:
        output.say(verdict.counts_on)
    if verdict.minimum_satisfactory_share:
        output.say(f"Minimum satisfactory share: {share_text(verdict)}")
    if verdict.tiers is not None:
        output.say(tiers_text(verdict.tiers))
    if verdict.offer is not None:
        output.say(f"Offer: {output.time_text(verdict.offer.deadline_at)}{_held(verdict)}")
    elif verdict.no_offer:
        output.say(verdict.no_offer)


def tiers_text(tiers: TierModes) -> str:
    """Return lines such as `With tiers: 2 GPUs or more (disk binds); 2: 0.5 s, 4: 0.3 s an iteration.`"""
    lines = []
    for name, mode in (("With tiers", tiers.with_tiers), ("Without tiers", tiers.without_tiers)):
        if mode is None:
            continue
        binds = f" ({mode.binding} binds)" if mode.binding else ""
        if mode.gpus is None:
            lines.append(f"{name}: no number of GPUs holds the model{binds}.")
            continue
        options = ", ".join(
            f"{option.gpus}: {'at most ' if option.is_upper_bound else ''}{option.step_seconds:.3g} s"
            for option in mode.options
        )
        options = f"; {options} an iteration" if options else ""
        unit = "GPU" if mode.gpus == 1 else "GPUs"
        lines.append(f"{name}: {mode.gpus} {unit} or more{binds}{options}.")
    return "\n".join(lines)


def share_text(verdict: Verdict) -> str:
    """Return the share over time in words: `4 GPUs for 10 min, then 2 for 5 min`."""
    pieces = [
        f"{share.gpus} for {format_duration((share.end - share.start).total_seconds())}"
        for share in verdict.minimum_satisfactory_share
        if share.start is not None and share.end is not None
    ]
    text = ", then ".join(pieces[:6]) + (f", then {len(pieces) - 6} more steps" if len(pieces) > 6 else "")
    unit = " GPU for" if text.startswith("1 ") else " GPUs for"
    return text.replace(" for", unit, 1)


def sentence(text: str) -> str:
    """Return a reason as a sentence: with a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}" + ("" if text[-1] in ".!?" else ".")


def _held(verdict: Verdict) -> str:
    offer = verdict.offer
    if offer is None:
        return ""
    sooner = (
        ""
        if offer.deadline_seconds is None
        else f"; accepted now, within {format_duration(offer.deadline_seconds)}"
    )
    if offer.valid_until is None:
        return f" can be promised{sooner.replace('accepted', 'submitted')}"
    return f" can be promised (held until {output.time_text(offer.valid_until)}{sooner})"


def offer_accepted(job: Job, *, yes: bool, may_ask: bool) -> bool:
    """Whether the person accepts the offered deadline: in advance, or when asked now."""
    if job.offer is None:
        return False
    if yes:
        return True
    if not may_ask or not output.can_ask():
        return False
    reason = f": {sentence(job.verdict.reason)}" if job.verdict is not None and job.verdict.reason else "."
    return ask(f"Declined{reason} Accept {output.time_text(job.offer.deadline_at)} instead?")


def ask(question: str) -> bool:
    """Ask a yes-or-no question on stderr; anything but yes is no."""
    sys.stderr.write(f"{' '.join(output.safe(question).split())} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
