"""Why a worker cannot go on, told apart so that the platform blames the right party.

A mistake in a person's function fails the job with the lines of *their* file; a peer that vanished or a port
that was taken is the platform's business and fails only this generation.
"""

from __future__ import annotations

import opcode
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

import communication
import punctual
from workers.runtime import own_groups

#: What torch raises for a connection or a store, beside the plain RuntimeError of gloo's collectives.
_OF_A_CONNECTION = (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
_COLLECTIVES_FOLDER = str(Path(dist.__file__).parent)
#: The folders of code that exchanges something with other ranks.
_EXCHANGING_FOLDERS = (
    _COLLECTIVES_FOLDER, str(Path(communication.__file__).parent), str(Path(__file__).resolve().parent)
)  # fmt: skip
#: A worker that is gone loses its connections one after the other: a function's own first, it may be.
_SETTLING_SECONDS = 1.0
_RUNTIME_FOLDER = str(Path(__file__).resolve().parent)
#: Nobody looks for a mistake of theirs in these: ours, and Python's own.
_FOREIGN_FOLDERS = (
    _RUNTIME_FOLDER, str(Path(punctual.__file__).resolve().parent), sysconfig.get_path("stdlib"), "<frozen"
)  # fmt: skip
_MESSAGE_LIMIT = 2_000
_TRACEBACK_LIMIT = 20_000


class WorkerFailureError(Exception):
    """This worker cannot go on.

    Attributes:
        reason: `function_error`, `function_load_error`, `environment_failed`, `data_unavailable`,
            `peer_lost`, `storage_failed`, `disk_writes_exceeded`, `nonfinite`, `plan_refused`, `lease_ended`,
            `declined` or `start_failed` (docs/protocols.md, 2.2).
        message: one line for a person.
        traceback_text: frames of the person's function, or empty.
        out_of_memory: the accelerator's memory did not suffice.
    """

    def __init__(
        self, reason: str, message: str, traceback_text: str = "", *, out_of_memory: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message[:_MESSAGE_LIMIT]
        self.traceback_text = traceback_text[-_TRACEBACK_LIMIT:]
        self.out_of_memory = out_of_memory


def is_peer_loss(error: BaseException) -> bool:
    """Whether `error` says that another rank of the process group is gone.

    Its words say nothing: they may be the function's. It is of a kind that torch raises where a connection
    breaks, or follows from one, no statement of the function raised it, and a connection of the runtime's own
    groups is broken.
    """
    return any(_follows_from_a_lost_peer(one) for one in _with_its_causes(error))


def _follows_from_a_lost_peer(error: BaseException) -> bool:
    if not isinstance(error, _OF_A_CONNECTION) and type(error) is not RuntimeError:
        return False
    if _is_raised_by_a_statement_elsewhere(error):
        return False
    frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
    collectives = [frame for frame in frames if frame.f_code.co_filename.startswith(_COLLECTIVES_FOLDER)]
    sure = isinstance(error, _OF_A_CONNECTION) or collectives
    if own_groups.has_lost_a_peer(_SETTLING_SECONDS if sure else 0.0):
        return True
    if not isinstance(error, dist.DistBackendError) or not own_groups.use_nccl():
        return False
    groups = [frame.f_locals.get("group") for frame in collectives]
    return all(own_groups.is_owned(group) for group in groups if isinstance(group, dist.ProcessGroup))


def _is_raised_by_a_statement_elsewhere(error: BaseException) -> bool:
    """Whether a `raise` outside of all code that exchanges anything raised the error. Where a connection
    breaks, the call of a compiled function raises it, or a `raise` of the runtime's own."""
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    is_statement = code.co_code[place.tb_lasti] == opcode.opmap["RAISE_VARARGS"]
    return is_statement and not code.co_filename.startswith(_EXCHANGING_FOLDERS)


def _with_its_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            waiting += [found.__cause__, found.__context__]
            yield found


@contextmanager
def blaming_the_function(what: str, reason: str = "function_error") -> Iterator[None]:
    """Turn whatever a person's code raises inside into a precise failure.

    Args:
        what: the method that is called, for the message.
        reason: `function_error` or `function_load_error`.

    Raises:
        WorkerFailureError: for every exception, `sys.exit()` and KeyboardInterrupt included: no signal brings
            one to a worker.
    """
    try:
        yield
    except WorkerFailureError:
        raise
    except BaseException as error:
        if is_peer_loss(error):
            raise peer_lost(error) from error
        raise failure_of(what, error, reason) from error


def failure_of(what: str, error: BaseException, reason: str = "function_error") -> WorkerFailureError:
    """The failure of a person's code that raised `error` in `what`."""
    return WorkerFailureError(
        reason,
        f"{what}: {_summary(error)}",
        _frames_of_the_function(error),
        out_of_memory=isinstance(error, torch.OutOfMemoryError),
    )


def peer_lost(error: BaseException) -> WorkerFailureError:
    """The failure of a rank whose partner in a collective is gone."""
    return WorkerFailureError("peer_lost", f"another worker of this generation is gone: {first_line(error)}")


def start_failed(what: str, error: BaseException) -> WorkerFailureError:
    """The failure of a generation that could not be brought together."""
    return WorkerFailureError("start_failed", f"{what}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type's name where it says nothing."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the person's code too
        return "its message cannot be made"
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines:
        return type(error).__name__
    # What PyTorch says of a state that does not fit begins so: the reason is on the next line.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _summary(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({error.code!r})"
    text = f"{type(error).__name__}: {first_line(error)}"
    frames = _visible_frames(error)
    if frames:
        text += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return text


def _visible_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Frames of the function: those below the runtime's own, outside Python's and installed packages."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_FOREIGN_FOLDERS)
        and "site-packages" not in frame.filename
        and "dist-packages" not in frame.filename
    ]


def _frames_of_the_function(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    shown = _visible_frames(error)
    # The innermost frame says which call inside a library went wrong; the runtime's own says nothing.
    if frames and frames[-1] not in shown and not frames[-1].filename.startswith(_RUNTIME_FOLDER):
        shown.append(frames[-1])
    lines = ["Traceback of the function (innermost call last):\n"] if shown else []
    lines += traceback.format_list(shown)
    lines += traceback.format_exception_only(error)
    return "".join(lines)
