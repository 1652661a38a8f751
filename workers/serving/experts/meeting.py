"""Connects the servers of a group, starts sessions, and coordinates leaving."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workers.runtime.failures import WorkerFailureError, first_line, start_failed
from workers.runtime.process_group import START_TIMEOUT, backend_for, listen_on, pin_interface
from workers.serving.assignment import GroupPlace

#: Long, as a client of the store logs a warning when this time ends.
_LONGEST_SILENCE = timedelta(hours=1)


class Bell:
    """Signals the begin of sessions to all ranks."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        """Use the group's store by two clients, as a waiting client is blocked."""
        self._waiting, self._ringing, self._rank = store, store.clone(), rank

    def ring(self, session: int) -> None:
        """Start a session. Raise RuntimeError if the store is gone."""
        self._ringing.set(f"session-{session}", "")

    def wait(self, session: int) -> bool:
        """Wait for a session; return False after a time-out. Raise RuntimeError if the store is gone."""
        try:
            self._waiting.wait([f"session-{session}"], _LONGEST_SILENCE)
        except dist.DistStoreError:
            return False
        return True

    def silence(self, session: int) -> None:
        """Delete the key of an ended session."""
        if self._rank == 0:
            self._ringing.delete_key(f"session-{session}")

    def want_to_leave(self, ranks: int) -> int:
        """Add `ranks` (0 or 1) to the ranks that want to leave; return the sum. Raise RuntimeError if the
        store is gone."""
        return int(self._ringing.add("left", ranks))


def meet(
    place: GroupPlace, generation: int, device: torch.device, own_address: str, patience_seconds: float
) -> Bell:
    """Join the group: gloo for tensors of the host, NCCL for those of GPUs.

    Args:
        own_address: address of this server's interface.
        patience_seconds: time-out of a collective; longer than a call of `predict` may take.

    Raises:
        WorkerFailureError: `start_failed` if the port is taken, `peer_lost` if other servers do not join.
    """
    pin_interface(own_address or place.address)
    options: dict[str, Any] = {"world_size": place.size, "timeout": START_TIMEOUT}
    try:
        if place.rank:
            store = dist.TCPStore(place.address, place.port, is_master=False, **options)
        else:
            listener = listen_on(own_address or place.address, place.port)
            options["master_listen_fd"] = listener.detach()
            store = dist.TCPStore(own_address or place.address, place.port, is_master=True, **options)
        names = _device_names(store, place, device)
        prefixed = dist.PrefixStore(f"group-{generation}", store)
        timeout = timedelta(seconds=patience_seconds)
        dist.init_process_group(
            backend_for(names), store=prefixed, rank=place.rank, world_size=place.size, timeout=timeout
        )
    except RuntimeError as error:
        raise WorkerFailureError(
            "peer_lost", f"the servers of the group could not be connected: {first_line(error)}"
        ) from error
    except (OSError, ValueError) as error:
        raise start_failed("the servers of the group could not be connected", error) from error
    return Bell(store, place.rank)


def _device_names(store: dist.Store, place: GroupPlace, device: torch.device) -> list[str]:
    if device.type != "cuda":
        return []
    store.set(f"device-{place.rank}", str(torch.cuda.get_device_properties(device).uuid))
    return [store.get(f"device-{rank}").decode() for rank in range(place.size)]
