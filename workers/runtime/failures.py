"""Why a worker cannot go on, told apart so that the platform blames the right party.

A mistake in a person's function fails the job with the lines of *their* file; a peer that vanished or a port
that was taken is the platform's business and fails only this generation.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

# What gloo and NCCL say when the other end of a collective is gone; both raise plain RuntimeError.
_PEER_LOSS = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|NCCL|remote process exited|socket (timeout|closed)",
    re.IGNORECASE,
)
_RUNTIME_FOLDER = str(Path(__file__).resolve().parent)
_MESSAGE_LIMIT = 2_000
_TRACEBACK_LIMIT = 20_000


class WorkerFailureError(Exception):
    """This worker cannot go on.

    Attributes:
        reason: `function_error`, `function_load_error`, `environment_failed`, `data_unavailable`, `peer_lost`
            `storage_failed`, `nonfinite`, `plan_refused` or `start_failed` (docs/protocols.md, 2.2).
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
    """Whether `error` says that another rank of the process group is gone."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return type(error) is RuntimeError and _PEER_LOSS.search(str(error)) is not None


@contextmanager
def blaming_the_function(what: str, reason: str = "function_error") -> Iterator[None]:
    """Turn whatever a person's code raises inside into a precise failure.

    Args:
        what: the method that is called, for the message.
        reason: `function_error` or `function_load_error`.

    Raises:
        WorkerFailureError: for every exception, `sys.exit()` included.
    """
    try:
        yield
    except WorkerFailureError:
        raise
    except (Exception, SystemExit) as error:
        if is_peer_loss(error):
            raise peer_lost(error) from error
        raise WorkerFailureError(
            reason,
            f"{what}: {_summary(error)}",
            _frames_of_the_function(error),
            out_of_memory=isinstance(error, torch.OutOfMemoryError),
        ) from error


def peer_lost(error: BaseException) -> WorkerFailureError:
    """The failure of a rank whose partner in a collective is gone."""
    return WorkerFailureError("peer_lost", f"another worker of this generation is gone: {_first_line(error)}")


def start_failed(what: str, error: BaseException) -> WorkerFailureError:
    """The failure of a generation that could not be brought together."""
    return WorkerFailureError("start_failed", f"{what}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _summary(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({error.code!r})"
    text = f"{type(error).__name__}: {_first_line(error)}"
    frames = _visible_frames(error)
    if frames:
        text += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return text


def _visible_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Frames of the function: those below the runtime's own and outside installed packages."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_RUNTIME_FOLDER, "<frozen"))
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
