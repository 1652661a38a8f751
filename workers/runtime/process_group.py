"""Connects the ranks of a generation. The control plane gives members, address and port; nothing is
negotiated."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workers.runtime import own_groups
from workers.runtime.assignment import Assignment
from workers.runtime.emulation import emulated_network
from workers.runtime.emulation.emulated_network import EmulatedGroup, Emulation
from workers.runtime.failures import WorkerFailureError, first_line, start_failed

# The control plane retires a generation that does not become ready; this only ends an abandoned worker.
START_TIMEOUT = timedelta(seconds=120)
# A peer with a broken connection is noticed at once; this bounds the wait for a silent one. It must exceed
# the longest evaluation, during which the other ranks wait for rank 0.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
_BACKLOG = 1024
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR


def build_emulation(assignment: Assignment, box: Path) -> Emulation | None:
    """Return the emulation of a worker with this assignment; None on a real device."""
    links = assignment.device.links
    model = assignment.device.model
    if links is None or model is None:
        return None
    return Emulation(links, assignment.places, box, model.codecs)


def open_process_group(assignment: Assignment, emulation: Emulation | None = None) -> None:
    """Join the generation's process group: gloo for CPU tensors, NCCL for those on a GPU that no other rank
    has, gloo over emulated links where the device is emulated.

    Raises:
        WorkerFailureError: `start_failed` if the port is taken or ranks have different runtime plans,
            `peer_lost` if other ranks do not join.
    """
    pin_interface(assignment.interface_address or assignment.master_address)
    try:
        store = dist.PrefixStore(f"generation-{assignment.generation}", _open_store(assignment))
        _compare_runtime_plans(store, assignment)
        backend = backend_for(_devices(assignment, store))
        if emulation is not None:
            emulated_network.register(emulation)
            backend = emulated_network.BACKEND
        dist.init_process_group(
            backend,
            store=store,
            rank=assignment.rank,
            world_size=assignment.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        own_groups.own(dist.group.WORLD)
    except RuntimeError as error:
        raise WorkerFailureError(
            "peer_lost", f"the workers could not be connected: {first_line(error)}"
        ) from error
    except (OSError, ValueError) as error:
        raise start_failed("the workers could not be connected", error) from error


def _compare_runtime_plans(store: dist.Store, assignment: Assignment) -> None:
    """Refuse to start under different runtime plans: ranks would wait in different collectives.

    Raises:
        WorkerFailureError: on every rank, with the same message, if the plans differ.
    """
    ranks = range(assignment.world_size)
    store.set(f"runtime-plan-{assignment.rank}", assignment.runtime_plan.digest)
    digests = [store.get(f"runtime-plan-{rank}").decode() for rank in ranks]
    others = [rank for rank in ranks if digests[rank] != digests[0]]
    if not others:
        return
    if store.add("runtime-plans-read", 1) == assignment.world_size:
        store.set("runtime-plans-read-by-all", "")
    if assignment.rank == 0:
        # The store ends with this process; all ranks must read the digests first.
        store.wait(["runtime-plans-read-by-all"])
    raise WorkerFailureError(
        "start_failed",
        f"rank {others[0]} was given the runtime plan {digests[others[0]][:12]} and rank 0 "
        f"{digests[0][:12]} ({len(others)} of {len(ranks)} ranks differ from rank 0): nothing is exchanged",
    )


def _devices(assignment: Assignment, store: dist.Store) -> list[str]:
    """Return the UUID of each rank's GPU; an empty list if the ranks compute on CPUs."""
    if assignment.device.kind != "cuda":
        return []
    own = str(torch.cuda.get_device_properties(assignment.device.index).uuid)
    store.set(f"device-{assignment.rank}", own)
    return [store.get(f"device-{rank}").decode() for rank in range(assignment.world_size)]


def backend_for(devices: Sequence[str]) -> str:
    """Return the backends for CPU and CUDA tensors of ranks on these GPUs.

    Two ranks may share a GPU by time-slicing. NCCL refuses that; gloo, which goes through host memory, works.
    """
    if not devices:
        return "gloo"
    alone = len(set(devices)) == len(devices)
    return f"cpu:gloo,cuda:{'nccl' if alone else 'gloo'}"


def _open_store(assignment: Assignment) -> dist.TCPStore:
    """Open the generation's key-value store; rank 0 serves it, on the declared interface only."""
    if assignment.rank != 0:
        return dist.TCPStore(
            assignment.master_address,
            assignment.master_port,
            assignment.world_size,
            is_master=False,
            timeout=START_TIMEOUT,
        )
    # Peers may reach this server under an address that differs from the interface's.
    own_address = assignment.interface_address or assignment.master_address
    listener = listen_on(own_address, assignment.master_port)
    return dist.TCPStore(
        own_address,
        assignment.master_port,
        assignment.world_size,
        is_master=True,
        timeout=START_TIMEOUT,
        # The store owns the descriptor from here on.
        master_listen_fd=listener.detach(),
    )


def listen_on(address: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on one address.

    Raises:
        OSError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address} port {port}: {error.strerror}") from error
    return listener


def pin_interface(address: str) -> None:
    """Make gloo and NCCL use the network interface that has `address`, if there is one."""
    name = interface_of(address)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name
        os.environ["NCCL_SOCKET_IFNAME"] = f"={name}"


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address; None if this machine has none."""
    try:
        wanted = socket.inet_aton(socket.gethostbyname(address))
    except OSError:
        return None
    fallback = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _GET_INTERFACE_ADDRESS, request)[20:24]
            except OSError:  # an interface without an IPv4 address
                continue
            if found == wanted:
                return name
            # 127.0.0.2 and the like belong to the loopback interface, which has 127.0.0.1.
            if found[0] == wanted[0] == 127:
                fallback = name
    return fallback


def broadcast_bytes(
    payload: bytes | None, *, source: int = 0, group: dist.ProcessGroup | None = None
) -> bytes | None:
    """Return the bytes of rank `source`, or its None, on every rank of the group.

    For small payloads: every rank holds all bytes.
    """
    if dist.get_world_size(group) == 1:
        return payload
    leads = dist.get_rank() == source
    size = torch.tensor([-1 if payload is None else len(payload)], dtype=torch.int64)
    dist.broadcast(size, src=source, group=group)
    if int(size) < 0:
        return None
    if int(size) == 0:
        return b""
    if leads:
        # A bytearray, as torch warns about tensors over read-only memory.
        dist.broadcast(
            torch.frombuffer(bytearray(payload or b""), dtype=torch.uint8), src=source, group=group
        )
        return payload
    content = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(content, src=source, group=group)
    return content.numpy().tobytes()


def sum_beside(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> dist.Work | None:
    """Begin to sum a small tensor of the platform over the ranks, outside the emulated links."""
    found = group or dist.group.WORLD
    if isinstance(found, EmulatedGroup):
        return found.bookkeeping(tensor)
    return dist.all_reduce(tensor, group=group, async_op=True)


def subgroup(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    """Return a group of some ranks, or None on ranks outside it; every rank of the generation calls this."""
    group = dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT)
    if dist.get_rank() not in ranks:
        return None
    own_groups.own(group)
    return group
