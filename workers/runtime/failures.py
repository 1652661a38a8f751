"""Reasons why a worker cannot go on, distinguished by the party at fault.

An error in a person's function fails the job and shows the lines of *their* file. A lost peer or a port
already in use is the platform's fault and fails only this generation.
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

#: Errors that torch raises for a connection or a store; gloo's collectives raise a plain RuntimeError.
_OF_A_CONNECTION = (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
_COLLECTIVES_FOLDER = str(Path(dist.__file__).parent)
#: Folders of code that communicates with other ranks.
_EXCHANGING_FOLDERS = (
    _COLLECTIVES_FOLDER, str(Path(communication.__file__).parent), str(Path(__file__).resolve().parent)
)  # fmt: skip
#: A worker that is gone loses its connections one after the other, perhaps the function's own first.
_SETTLING_SECONDS = 1.0
_RUNTIME_FOLDER = str(Path(__file__).resolve().parent)
#: Folders in which no error of a person's function can be: the platform's and Python's own.
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
        out_of_memory: whether the accelerator ran out of memory.
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
    """Return whether `error` means that another rank of the process group is gone.

    The error's text does not tell, as it may be the function's. The conditions are: the error, or one it
    follows from, is of a type that torch raises for a broken connection; no `raise` of the function raised
    it; and a connection of the runtime's own groups is broken.
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
    """Return whether a `raise` outside of all communicating code raised the error.

    For a broken connection, a call of a compiled function raises it, or a `raise` of the runtime.
    """
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
    """Turn any exception of a person's code inside this context into a WorkerFailureError.

    Args:
        what: the called method, for the message.
        reason: `function_error` or `function_load_error`.

    Raises:
        WorkerFailureError: for every exception, `sys.exit()` and KeyboardInterrupt included: in a worker,
            no signal raises the latter.
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
    """Return the failure of a person's code that raised `error` in `what`."""
    return WorkerFailureError(
        reason,
        f"{what}: {_summary(error)}",
        _frames_of_the_function(error),
        out_of_memory=isinstance(error, torch.OutOfMemoryError),
    )


def peer_lost(error: BaseException) -> WorkerFailureError:
    """Return the failure of a rank whose partner in a collective is gone."""
    return WorkerFailureError("peer_lost", f"another worker of this generation is gone: {first_line(error)}")


def start_failed(what: str, error: BaseException) -> WorkerFailureError:
    """Return the failure of a generation whose ranks could not be connected."""
    return WorkerFailureError("start_failed", f"{what}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type's name if the text is empty."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ may be a person's code
        return "its message cannot be made"
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines:
        return type(error).__name__
    # PyTorch's errors about a state that does not fit end the first line so; the reason follows on the next.
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
    """Return the frames of the function: outside the runtime, Python and installed packages."""
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
    # The innermost frame shows which call inside a library failed; a frame of the runtime does not help the
    # user.
    if frames and frames[-1] not in shown and not frames[-1].filename.startswith(_RUNTIME_FOLDER):
        shown.append(frames[-1])
    lines = ["Traceback of the function (innermost call last):\n"] if shown else []
    lines += traceback.format_list(shown)
    lines += traceback.format_exception_only(error)
    return "".join(lines)
