"""`manage.py reproduce`: the figures of a paper, simulated again, beside what was published."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from research.executing import Results, Told, make_results
from research.figure import Context, FigureDefinition
from research.paper import Paper
from research.papers import PAPERS
from research.reporting import Comparison, compare, verdicts, write_json, write_page
from research.rows import counts
from simulation.workloads.errors import TraceError
from simulation.workloads.public_traces import (
    ELASTICFLOW,
    ELASTICFLOW_TRACES,
    THROUGHPUTS,
    VARIABLE,
    traces_folder,
)
from simulation.workloads.throughputs import LONG_TABLE

REFRESH_SECONDS = 0.2


class Command(BaseCommand):
    """Reproduce the published comparison of a paper."""

    help = "Compute a paper's figures again and report them beside the published values, with explanations."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which paper, how much of it, and where to put what."""
        parser.add_argument("paper", choices=sorted(PAPERS))
        length = parser.add_mutually_exclusive_group()
        length.add_argument(
            "--short",
            action="store_true",
            help=f"minutes (default): {_of_each(lambda paper: paper.short)}",
        )
        length.add_argument("--full", action="store_true", help=_of_each(lambda paper: paper.full))
        parser.add_argument("--only", help=f"figures, with commas between: {_figure_names()}")
        parser.add_argument("--json", type=Path, help="write the comparison here; - for standard output")
        parser.add_argument(
            "--report", type=Path, help="write the page here; default: a file of the paper in the folder"
        )
        parser.add_argument(
            "--folder", type=Path, help="results are kept here; default: reproduction in the data folder"
        )
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to simulate in")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make what results are missing, then report. What was made before is kept and used again."""
        if options["jobs"] < 1:
            raise CommandError(f"--jobs must be at least 1, not {options['jobs']}")
        folder = options["folder"] or Path(settings.DATA_DIR) / "reproduction"
        paper = PAPERS[options["paper"]]
        report = options["report"] or folder / paper.report
        try:
            figures, left_out = _figures(paper, options["only"])
            published = paper.published()
        except (TraceError, ValueError) as error:
            raise CommandError(str(error)) from None
        for text in left_out:
            self.stderr.write(text)
        specs = [spec for figure in figures for spec in figure.runs(options["full"])]
        try:
            with _progress(sys.stderr) as (told, progress):
                results = make_results(specs, folder, processes=options["jobs"], told=told, progress=progress)
            context = Context(published, results, options["full"])
            comparison = compare(paper, context, figures, left_out)
            write_page(comparison, report)
            if options["json"] is not None and str(options["json"]) != "-":
                write_json(comparison, options["json"])
        except OSError as error:
            raise CommandError(f"nothing can be written: {error}") from None
        self._say(comparison, options, report)
        if results.interrupted:
            raise CommandError(
                "interrupted: the report is of what there was; the same command goes on from there"
            )
        if results.failed:
            raise CommandError(f"{len(results.failed)} runs are missing: {_reasons(results)}")

    def _say(self, comparison: Comparison, options: dict[str, Any], report: Path) -> None:
        if str(options["json"]) == "-":
            self.stdout.write(json.dumps(comparison.as_json(), indent=2, allow_nan=False))
            return
        checks = [*comparison.checks, *(check for each in comparison.reports for check in each.checks)]
        for check in checks:
            verdict = {True: "met    ", False: "NOT MET", None: "unknown"}[check.met]
            self.stdout.write(f"{verdict}  {check.name}: {check.figures}")
        found, results = counts(comparison.rows), comparison.context.results
        told = verdicts(comparison)
        self.stdout.write(
            f"{told['met']} met, {told['not_met']} not met, {told['not_known']} not known; "
            f"{len(results.by_spec)} runs, {results.reused} of them from before"
        )
        if found["compared"]:
            self._say_values(found)
        self.stdout.write(f"report: {report}")

    def _say_values(self, found: dict[str, int]) -> None:
        self.stdout.write(
            f"{found['compared']} values compared, {found['within_band']} within the band "
            f"({found['within_band_by_published_rules']} of {found['compared_by_published_rules']} where "
            f"ours follows the published code), {found['beyond_band']} beyond ({found['unexplained']} "
            "unexplained)"
        )


def _of_each(version: Callable[[Paper], str]) -> str:
    return "; ".join(f"{name}: {version(paper)}" for name, paper in PAPERS.items())


def _figure_names() -> str:
    return _of_each(lambda paper: ", ".join(paper.figures))


def _figures(paper: Paper, only: str | None) -> tuple[Sequence[FigureDefinition], list[str]]:
    """The figures asked for that can be run here, and a sentence for those that cannot."""
    if only is None:
        chosen = list(paper.figures.values())
    else:
        names = [name.strip() for name in only.split(",") if name.strip()]
        chosen = list({figure.name: figure for figure in map(paper.figure_named, names)}.values())
        if not chosen:
            raise ValueError("--only names no figure")
    if traces_folder() is not None:
        return chosen, []
    left = [figure.name for figure in chosen if figure.needs_traces]
    if not left and not paper.without_traces:
        return chosen, []
    return [figure for figure in chosen if not figure.needs_traces], [
        (
            f"The public traces are not here, so {', '.join(left) or 'nothing'} is left out"
            f"{paper.without_traces}. Set {VARIABLE} to a folder with elasticflow/traces "
            f"({ELASTICFLOW_TRACES}; {ELASTICFLOW}) and elasticflow/throughput.csv (made of "
            f"{THROUGHPUTS[LONG_TABLE]})."
        )
    ]


def _reasons(results: Results) -> str:
    reasons = list(dict.fromkeys(results.failed.values()))
    return "; ".join(reasons[:3]) + (f" and {len(reasons) - 3} more reasons" if len(reasons) > 3 else "")


@contextmanager
def _progress(stream: TextIO) -> Iterator[tuple[Told, Callable[[int, int, float], None] | None]]:
    """A bar over all runs on a terminal; elsewhere a line for every tenth of them."""
    console = Console(file=stream)
    if not console.is_terminal:
        yield _lines(stream), None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        runs, within = bar.add_task("runs", total=None), bar.add_task("jobs of this run", total=None)
        shown = 0.0

        def told(done: int, count: int, name: str) -> None:
            bar.update(runs, completed=done, total=count, description=name or "runs")

        def progress(ended: int, jobs: int, at: float) -> None:
            nonlocal shown
            if time.monotonic() - shown > REFRESH_SECONDS:
                shown = time.monotonic()
                bar.update(within, completed=ended, total=jobs)

        yield told, progress


def _lines(stream: TextIO) -> Told:
    said = -1

    def told(done: int, count: int, name: str) -> None:
        nonlocal said
        tenth = 10 * done // count if count else 10
        if tenth != said:
            said = tenth
            stream.write(f"{done} of {count} runs\n")
            stream.flush()

    return told
