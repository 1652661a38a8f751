"""The command's root: its commands, its exit codes, and errors in one line.

Exit codes: 0 done; 1 the job failed, was declined or cancelled, or the platform's present state forbids it; 2
wrong usage or input; 3 not logged in; 4 not found or not allowed; 5 no answer from the platform; 70 a defect
of this program; 130 interrupted with Ctrl-C; 141 the reader of the output has closed it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.cli.commands import (
    account,
    cluster,
    deployments,
    functions,
    inference,
    jobs,
    login,
    projects,
    recoveries,
    results,
    simulations,
    submit,
    users,
)
from punctual.errors import (
    ConflictError,
    ConnectionFailedError,
    InvalidInputError,
    LimitReachedError,
    NoPlatformError,
    NotAllowedError,
    NotFoundError,
    NotLoggedInError,
    PunctualError,
    ServerError,
)

_DEFECT = 70
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_CODES: tuple[tuple[tuple[type[PunctualError], ...], int], ...] = (
    ((NotLoggedInError, NoPlatformError), 3),
    ((NotFoundError, NotAllowedError), 4),
    ((ConnectionFailedError, ServerError), 5),
    ((ConflictError, LimitReachedError), 1),
)
# A process that runs several commands builds them once, because that takes longer than most commands.
_get_command = functools.cache(typer.main.get_command)
_WORDS_FOR_GPUS = ("gpu", "world", "worker", "nproc", "device")

app = typer.Typer(
    name="punctual",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit(0)


@app.callback()
def root(
    url: Annotated[str | None, typer.Option("--url",
    help="The platform's address; else PUNCTUAL_URL, else the stored one.")] = None,
    profile: Annotated[str | None, typer.Option("--profile",
    help="Stored platform and identity; else PUNCTUAL_PROFILE.")] = None,
    _version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version,
    help="Show this program's version.")] = False,
) -> None:  # fmt: skip
    """Submit training functions with deadlines; Punctual says whether it can promise them, and keeps its
    promises.

    Exit codes: 0 done, 1 job failed or declined, or refused in the present state, 2 usage, 3 not logged in, 4
    not found or not allowed, 5 no connection.
    """
    session.choose(url, profile)


def version(as_json: options.Json = False) -> None:
    """Show this program's version."""
    facts = {"punctual": _own_version(), "python": platform.python_version()}
    if as_json:
        output.print_json(facts)
    else:
        output.say(f"punctual {facts['punctual']} (Python {facts['python']})")


def _own_version() -> str:
    try:
        return importlib.metadata.version("punctual")
    except importlib.metadata.PackageNotFoundError:
        return "from a source tree"


for command in (
    login.login, login.logout, login.whoami, submit.submit, submit.what_if, submit.accept, submit.decline,
    submit.clone, submit.follow,
    jobs.jobs, jobs.job, jobs.logs, jobs.events, jobs.cancel, jobs.pause, jobs.resume, jobs.deadline,
    results.metrics, results.artifacts, results.checkpoints, results.curve, results.plan,
    recoveries.recoveries, recoveries.memory_point, cluster.cluster, deployments.deploy,
    version,
):  # fmt: skip
    app.command()(command)
for name, group in {
    "servers": cluster.servers_app,
    "agents": cluster.agents_app,
    "functions": functions.functions_app,
    "deployments": deployments.deployments_app,
    "inference": inference.inference_app,
    "simulations": simulations.simulations_app,
    "tokens": account.tokens_app,
    "projects": projects.projects_app,
    "invitations": projects.invitations_app,
    "users": users.users_app,
}.items():
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Any error is printed in one line on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 shows question marks.
        sys.stdout.reconfigure(errors="replace")
    try:
        for argument in given:
            if not _is_utf8(argument):
                raise InvalidInputError(f"an argument is not UTF-8 text: {argument[:60]}")
        result = _get_command(app).main(args=given, prog_name="punctual", standalone_mode=False)
    except PunctualError as error:
        output.fail(error.message, error.hint)
        return exit_code(error)
    except typer.TyperException as error:
        return _usage_error(error)
    except (typer.Abort, KeyboardInterrupt):
        output.fail("interrupted")
        return _INTERRUPTED
    except SystemExit as end:
        if end.code != 1:
            raise  # completion has answered the shell
        # Typer and rich end with 1 when the reader of the output has closed the pipe. Python must not try to
        # flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001
        return _defect(error)
    return result if isinstance(result, int) else 0


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def exit_code(error: PunctualError) -> int:
    """Return the documented exit code of an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), 2)


def _usage_error(error: typer.TyperException) -> int:
    message = error.format_message()
    if not message or "\n\n" in message:
        # A command without its subcommand: the message is the help text.
        output.say(message)
        return 2
    asks_for_gpus = "no such option" in message.lower() and any(
        word in message.lower() for word in _WORDS_FOR_GPUS
    )
    hint = (
        "Punctual chooses the number of GPUs: state a --deadline instead"
        if asks_for_gpus
        else "see punctual --help, or --help after a command"
    )
    output.fail(message.rstrip("."), hint)
    return 2


def _defect(error: Exception) -> int:
    if os.environ.get("PUNCTUAL_DEBUG"):
        traceback.print_exception(error)
    output.fail(
        f"a defect of this program: {type(error).__name__}: {error}",
        "please report it with what PUNCTUAL_DEBUG=1 shows",
    )
    return _DEFECT
