"""A process group whose messages go over emulated links.

Gloo really sends every message from rank to rank. With each message goes the emulated time at which the links
have carried it; the receiver gets it no earlier. A collective's time thus results from its steps, from the
links of each step, and from other traffic on these links.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from emulated_links.arbiter import LONGEST_DELAY_SECONDS
from emulated_links.client import LinkClient, wait_until
from emulated_links.rates import EXPERTS, NETWORK, NETWORK_IN, SPINE, TRAFFIC, WITHIN_SERVER, ServerLinks
from workers.runtime.emulation import emulated_collectives as collectives
from workers.runtime.emulation.emulated_codecs import CodecTable, EmulatedCourse
from workers.runtime.emulation.emulated_collectives import Message
from workers.runtime.emulation.emulated_time import Asked, EmulatedClock
from workers.runtime.emulation.places import Places

BACKEND = "emulated"
_NUMBERS = 1 << 20
_STEPS = 64
STAMP_NUMBERS = 4
#: Up to this size a message and its stamp are sent as one.
SMALL_BYTES = 1 << 18
#: Messages up to this size are charged to the links together with the next message: their time is negligible,
#: their total is not.
TINY_BYTES = 1024


class Emulation:
    """An emulated accelerator among others: its clock, the links of its server, the places of all ranks.

    Attributes:
        received_at: emulated time at which the last collective ended on this rank.
        codecs: the device's times of encoding and decoding.
        noted: called with the emulated begin and end of each collective between servers; None: not called.
    """

    def __init__(
        self, links: ServerLinks, places: Places, box: Path, codecs: CodecTable = MappingProxyType({})
    ) -> None:
        self.clock = EmulatedClock()
        self.codecs = codecs
        self.client = LinkClient(links, box)
        self.places = places
        self.received_at = self.clock.at
        self.noted: Callable[[float, float], None] | None = None
        self._machine = _machine_number()

    def path(self, sender: int, receiver: int) -> tuple[str, ...]:
        """Return the sender's links on the path to the receiver."""
        servers, racks = self.places.servers, self.places.racks
        if servers[sender] == servers[receiver]:
            return (WITHIN_SERVER,)
        if racks[sender] == racks[receiver]:
            return (NETWORK,)
        return (NETWORK, SPINE)

    def latency_bytes(self, ranks: Sequence[int]) -> float:
        """Return the bytes that the slowest link among these ranks carries during its latency."""
        servers = {self.places.servers[rank] for rank in ranks}
        racks = {self.places.racks[rank] for rank in ranks}
        path = (WITHIN_SERVER,) if len(servers) == 1 else (NETWORK,) if len(racks) == 1 else (NETWORK, SPINE)
        links = self.client.links
        return links.latency_seconds(path) * min(links.rate(link).bytes_per_second for link in path)

    def stamp(self, started: float, ended: float) -> Tensor:
        """Return a message's stamp: its begin and end, the clock's current time, and the machine's number."""
        return torch.tensor([started, ended, time.monotonic(), self._machine], dtype=torch.float64)

    def read_stamp(self, stamp: Tensor) -> tuple[float, float]:
        """Return a message's begin and end on this machine's clock. Times of another machine's clock are
        shifted so that the message was sent when it was received."""
        started, ended, sent, machine = stamp.tolist()
        offset = 0.0 if machine == self._machine else time.monotonic() - sent
        return started + offset, ended + offset


def _machine_number() -> float:
    """Return a number of this machine and boot: processes with the same number share a clock."""
    content = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return float(int.from_bytes(hashlib.sha256(content).digest()[:6], "big"))


class EmulatedGroup(dist.ProcessGroup):
    """Runs collectives one after the other, in its own thread, over an inner gloo group.

    By default their traffic class is gradients, and state for broadcasts. A group whose description names a
    class of traffic has that class.

    Attributes:
        last: emulated begin and end of the last collective that has ended.
    """

    def __init__(self, inner: dist.ProcessGroupGloo, ranks: Sequence[int], emulation: Emulation) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner = inner
        self._ranks = ranks
        self._emulation = emulation
        self._name = self._description = ""
        self.latency_bytes = emulation.latency_bytes(ranks)
        self._between_servers = len({emulation.places.servers[rank] for rank in ranks}) > 1
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._at = emulation.clock.at
        self.last = (self._at, self._at)
        self._collectives = 0
        self._owed: dict[tuple[tuple[str, ...], str], int] = {}
        threading.Thread(target=self._work_for_ever, name="emulated-group", daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name under which the backend is registered."""
        return BACKEND

    # torch asks a group's backends for its name; no backend of this group returns it.

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The group's name in torch, which is also needed when the group is destroyed."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        """The group's description in torch."""
        return self._description

    @property
    def carrier(self) -> dist.ProcessGroup:
        """The group that really sends its messages."""
        return self._inner

    def course(self) -> EmulatedCourse:
        """Return the emulated time of an exchange of gradients on this group's device."""
        return EmulatedCourse(self._emulation.clock, self._emulation.codecs)

    def bookkeeping(self, tensor: Tensor) -> dist.Work:
        """Sum a small tensor of the platform over all ranks outside the emulation, as the declared device
        would not send it over these links."""
        return self._inner.allreduce([tensor])

    # -- collectives, as torch.distributed calls them

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce each tensor over all ranks, in place."""
        reduce = collectives.reduction(dist.ReduceOp.SUM if opts is None else opts.reduceOp)

        def reduce_all() -> None:
            for tensor in tensors:
                collectives.all_reduce(self, tensor, reduce)

        return self._later(reduce_all, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Give every rank the root's tensor."""
        tensor = tensors[opts.rootTensor]
        return self._later(lambda: collectives.broadcast(self, tensor, opts.rootRank), tensors)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensor: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank all ranks' tensors."""
        (outputs,), (mine,) = output_tensors, input_tensor
        return self._later(lambda: collectives.all_gather(self, outputs, mine), output_tensors)

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank a tensor of its own."""
        return self._later(
            lambda: collectives.all_to_all(self, output_tensors, input_tensors), output_tensors
        )

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:
        """Give every rank its part of a tensor."""
        outputs = output.split(output_split_sizes or len(output) // self.size())
        inputs = input.split(input_split_sizes or len(input) // self.size())
        return self._later(lambda: collectives.all_to_all(self, outputs, inputs), [output])

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> dist.Work:
        """`alltoall_base` by its newer name."""
        return self.alltoall_base(output, input, output_sizes, input_sizes, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Give every rank all ranks' tensors, concatenated."""
        outputs = list(output.view(self.size(), -1))
        return self._later(lambda: collectives.all_gather(self, outputs, input.reshape(-1)), [output])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Give every rank its part of the reduction."""
        reduce = collectives.reduction(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        return self._later(lambda: collectives.reduce_scatter(self, output, input, reduce), [output])

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Reduce a tensor over all ranks into the root's, in place; other ranks' tensors are overwritten."""
        tensor = tensors[opts.rootTensor]
        reduce = collectives.reduction(opts.reduceOp)
        return self._later(lambda: collectives.reduce_to_root(self, tensor, reduce, opts.rootRank), tensors)

    def gather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any) -> dist.Work:
        """Give the root all ranks' tensors."""
        outputs = output_tensors[0] if output_tensors else []
        (mine,) = input_tensors
        return self._later(lambda: collectives.gather(self, outputs, mine, opts.rootRank), [outputs])

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks."""
        mark = torch.zeros(1)
        return self._later(
            lambda: collectives.all_reduce(self, mark, collectives.reduction(dist.ReduceOp.SUM)), [mark]
        )

    # -- one collective after the other

    def _later(self, collective: Callable[[], Any], result: Any) -> dist.Work:
        asked_at = self._emulation.clock.now()
        told = self._emulation.clock.asks()
        asked: torch.futures.Future[list[BaseException]] = torch.futures.Future()

        def run() -> None:
            raised: list[BaseException] = []
            self._at = max(self._at, asked_at)
            self._collectives += 1
            began = self._at
            try:
                collective()
                wait_until(self._at)
                if self._between_servers and self._emulation.noted is not None:
                    self._emulation.noted(began, self._at)
                self._emulation.received_at = max(self._emulation.received_at, self._at)
                told.began_at, told.ended_at = began, self._at
                self.last = (began, self._at)
            except BaseException as error:  # noqa: BLE001 - it is raised where the collective is waited for
                raised.append(error)
            asked.set_result(raised)

        self._work.put(run)
        # The passes depend on exchanged rows: experts compute received rows, later layers returned ones.
        holds_passes = self._description == EXPERTS
        waited = partial(self._emulation.clock.waited, told, holds_passes=holds_passes)
        return EmulatedWork(asked, result, waited, told)

    @torch.no_grad()
    def _work_for_ever(self) -> None:
        while True:
            self._work.get()()

    # -- one step of a collective

    def exchange(self, sent: Sequence[Message], received: Sequence[Message], traffic: str, step: int) -> None:
        """Send and receive at once; return when all messages are received, in emulated time as well.

        Messages without elements are not sent. `step` is the same for both sides of a message.

        Raises:
            RuntimeError: a peer is gone.
        """
        traffic = self._description if self._description in TRAFFIC else traffic
        tag = 2 * ((self._collectives % _NUMBERS) * _STEPS + step % _STEPS)
        started = ended = self._at
        wait_until(started)
        arriving = [Arriving(self._inner, each, tag) for each in received if each.tensor.numel()]
        leaving = [Leaving(self._inner, each, tag) for each in sent if each.tensor.numel()]
        for leaver in leaving:
            on_links, arrived = self._send_over_links(leaver, traffic, started)
            ended = max(ended, on_links)
            leaver.release(self._emulation.stamp(started, arrived))
        for arriver in arriving:
            ended = max(ended, self._receive(arriver, traffic))
        for leaver in leaving:
            leaver.wait()
        self._at = ended

    def _carry(self, path: tuple[str, ...], traffic: str, size: int, started: float) -> float:
        """Return when the links have carried a message."""
        size += self._owed.pop((path, traffic), 0)
        if size <= TINY_BYTES:
            self._owed[path, traffic] = size
            return started
        # Links do not account for traffic that is older than LONGEST_DELAY_SECONDS.
        late = time.monotonic() - started - LONGEST_DELAY_SECONDS
        if late > 0:
            self._emulation.clock.lose(late)
        return self._emulation.client.transfer(path, traffic, size, started)

    def _send_over_links(self, message: Leaving, traffic: str, started: float) -> tuple[float, float]:
        """Return when this server's links have carried a message, and when it arrives."""
        emulation = self._emulation
        path = emulation.path(self._ranks[self.rank()], self._ranks[message.peer])
        ended = self._carry(path, traffic, message.bytes, started)
        return ended, ended + emulation.client.links.latency_seconds(path)

    def _receive(self, message: Arriving, traffic: str) -> float:
        """Return when a message arrived; messages from several servers share this server's inbound link."""
        emulation = self._emulation
        started, arrived = emulation.read_stamp(message.wait())
        servers = emulation.places.servers
        if servers[self._ranks[self.rank()]] == servers[self._ranks[message.peer]]:
            return arrived
        return max(arrived, self._carry((NETWORK_IN,), traffic, message.bytes, started))


class EmulatedWork(dist.Work):
    """A pending collective. All ways to wait raise its error; torch's FutureWork swallows errors and leaves
    the receive buffer uninitialised."""

    def __init__(
        self,
        asked: torch.futures.Future[list[BaseException]],
        result: Any,
        waited: Callable[[], None],
        told: Asked,
    ) -> None:
        """Store the futures.

        Args:
            waited: called in each thread that has waited.
            told: holds the emulated begin and end.
        """
        super().__init__()
        self._asked, self._waited, self._told = asked, waited, told
        # An exception set on a future does not reach waiters in C++; one raised in a callback does.
        self._finished = asked.then(lambda future: _result_or_raise(future.value(), result))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over, within gloo's own time-outs. Raise RuntimeError if a peer is gone."""
        _result_or_raise(self._asked.wait(), None)
        self._waited()
        return True

    @property
    def span(self) -> tuple[float, float] | None:
        """Its emulated begin and end; None until it is over."""
        began_at, ended_at = self._told.began_at, self._told.ended_at
        return None if began_at is None or ended_at is None else (began_at, ended_at)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of its result or error."""
        return self._finished

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return self._asked.done()


class Leaving:
    """A message to send. A large one is sent before its stamp, a small one together with its stamp."""

    def __init__(self, group: dist.ProcessGroupGloo, message: Message, tag: int) -> None:
        self.peer = message.peer
        self.bytes = message.tensor.nbytes
        self._group, self._tensor, self._tag = group, message.tensor, tag
        self._works = []
        if self.bytes > SMALL_BYTES:
            self._works.append(group.send([message.tensor], message.peer, tag))

    def release(self, stamp: Tensor) -> None:
        """Send the stamp, together with a small message."""
        if self.bytes > SMALL_BYTES:
            self._works.append(self._group.send([stamp], self.peer, self._tag + 1))
            return
        # Keep the tensor alive until it is sent.
        self._tensor = torch.cat([stamp.view(torch.uint8), self._tensor.reshape(-1).view(torch.uint8)])
        self._works.append(self._group.send([self._tensor], self.peer, self._tag))

    def wait(self) -> None:
        """Wait until it is sent. Raise RuntimeError if the peer is gone."""
        for work in self._works:
            work.wait()


class Arriving:
    """A message to receive."""

    def __init__(self, group: dist.ProcessGroupGloo, message: Message, tag: int) -> None:
        self.peer = message.peer
        self.bytes = message.tensor.nbytes
        self._tensor = message.tensor
        self._stamp = torch.empty(STAMP_NUMBERS, dtype=torch.float64)
        if self.bytes > SMALL_BYTES:
            self._works = [
                group.recv([message.tensor], self.peer, tag),
                group.recv([self._stamp], self.peer, tag + 1),
            ]
            return
        self._content = torch.empty(self._stamp.nbytes + self.bytes, dtype=torch.uint8)
        self._works = [group.recv([self._content], self.peer, tag)]

    def wait(self) -> Tensor:
        """Wait for the whole message; return its stamp. Raise RuntimeError if the peer is gone."""
        for work in self._works:
            work.wait()
        if self.bytes > SMALL_BYTES:
            return self._stamp
        stamp, content = self._content.split([self._stamp.nbytes, self.bytes])
        self._tensor.copy_(content.clone().view(self._tensor.dtype).view(self._tensor.shape))
        return stamp.clone().view(torch.float64)


def _result_or_raise(raised: list[BaseException], result: Any) -> Any:
    if raised:
        raise raised[0]
    return result


def register(emulation: Emulation) -> None:
    """Let process groups of the backend `emulated` use this emulation."""

    def create(options: Any, _backend_options: Any) -> EmulatedGroup:
        inner = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        return EmulatedGroup(inner, ranks, emulation)

    if BACKEND.upper() in dist.Backend._plugins:
        del dist.Backend._plugins[BACKEND.upper()]
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
