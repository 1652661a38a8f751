"""How the servers of a group find each other, begin sessions and leave."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workers.runtime.failures import WorkerFailureError, first_line, start_failed
from workers.runtime.process_group import START_TIMEOUT, backend_for, listen_on, pin_interface

#: A client of the store warns in the log when this time ends, so it is long.
_LONGEST_SILENCE = timedelta(hours=1)


@dataclass(frozen=True)
class GroupPlace:
    """This server's place in a group. `address`, `port`: where rank 0 serves the group's store."""

    rank: int
    size: int
    address: str
    port: int


class Bell:
    """Tells all ranks that a session begins."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        """Take a store of the group; a client that waits cannot ask anything else, so there are two."""
        self._waiting, self._ringing, self._rank = store, store.clone(), rank

    def ring(self, session: int) -> None:
        """Let a session begin. Raises RuntimeError if the store is gone."""
        self._ringing.set(f"session-{session}", "")

    def wait(self, session: int) -> bool:
        """Return whether a session begins; False after some time without. Raises RuntimeError."""
        try:
            self._waiting.wait([f"session-{session}"], _LONGEST_SILENCE)
        except dist.DistStoreError:
            return False
        return True

    def silence(self, session: int) -> None:
        """Forget a session that has ended."""
        if self._rank == 0:
            self._ringing.delete_key(f"session-{session}")

    def want_to_leave(self, ranks: int) -> int:
        """Count ranks, this one or none, that want to leave; return how many do. Raises RuntimeError."""
        return int(self._ringing.add("left", ranks))


def meet(
    place: GroupPlace, generation: int, device: torch.device, own_address: str, patience_seconds: float
) -> Bell:
    """Join the group: gloo for tensors of the host, NCCL for those of GPUs.

    Args:
        own_address: of this server's interface.
        patience_seconds: of a collective; longer than a call of `predict` may take.

    Raises:
        WorkerFailureError: `start_failed` if the port is taken, `peer_lost` if the others do not come.
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
