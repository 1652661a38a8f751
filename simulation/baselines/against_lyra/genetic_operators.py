"""Pollux's genetic search on placement matrices: fitness, crossover, mutation and repair.

Qiao et al., "Pollux" (OSDI 2021), section 4.2, with the steps of its published scheduler.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray, IntArray

WorkerCounts: TypeAlias = NDArray[np.int16]
"""Workers on every server (row) of every job (column); several of them with members in front."""

WAITING_SPEEDUP = 1e-3
"""Added to every speed-up: the power mean of -1 knows no 0. As published."""

NOBODY = -1

RESET_SHARE, THINNED_SHARE, THINNED_PART = 0.1, 0.1, 0.1
"""Shares of jobs put back where they are at present, and of jobs that lose a part of their servers, by one
mutation. As published."""


class Question(NamedTuple):
    """Servers and jobs of one search. Where a placement is too large, jobs keep their workers in the order of
    their columns."""

    #: GPUs of each server.
    capacity: IntArray
    #: GPUs of one worker of each job.
    width: IntArray
    #: Fewest workers of each job, if it has any.
    least: IntArray
    #: Most workers of each job.
    most: IntArray
    #: By job and number of workers: the largest allowed number that does not exceed it; 0 for none.
    listed: IntArray
    #: By job and number of workers: rate with ``listed`` workers over the rate on a fair share.
    speedup: FloatArray
    #: Workers by server and job at present.
    present: WorkerCounts
    #: Factor on the speed-up of a job whose placement changes.
    discount: FloatArray


@kernel
def merit(question: Question, placement: WorkerCounts) -> tuple[float, float]:
    """(fitness, second objective) of an allowed placement; greater is better.

    The fitness is the power mean (-1) of the jobs' speed-ups. The second objective is the sum of speed-ups
    for each GPU of a server in use; as published, it only preserves diversity.
    """
    servers, jobs = placement.shape
    total = np.zeros(jobs, dtype=np.int64)
    changed = np.zeros(jobs, dtype=np.bool_)
    in_use = 0
    for server in range(servers):
        here, at_present = placement[server], question.present[server]
        on_server = 0
        for job in range(jobs):
            if here[job] != 0 or at_present[job] != 0:
                total[job] += here[job]
                on_server += here[job]
                if here[job] != at_present[job]:
                    changed[job] = True
        if on_server > 0:
            in_use += question.capacity[server]
    inverse, useful = 0.0, 0.0
    for job in range(jobs):
        speedup = question.speedup[job, total[job]]
        useful += speedup * question.width[job]
        if changed[job]:
            speedup *= question.discount[job]
        inverse += 1.0 / (speedup + WAITING_SPEEDUP)
    return jobs / inverse, useful / max(1, in_use)


@kernel
def cross(
    one: WorkerCounts, other: WorkerCounts, point: int, child: WorkerCounts, sibling: WorkerCounts
) -> None:
    """Make two children: one has the jobs before ``point`` from ``one`` and the rest from ``other``; the
    sibling is the reverse."""
    for server in range(one.shape[0]):
        child[server, :point] = one[server, :point]
        child[server, point:] = other[server, point:]
        sibling[server, :point] = other[server, :point]
        sibling[server, point:] = one[server, point:]


@kernel
def mutate(question: Question, placement: WorkerCounts, draw: np.random.Generator) -> None:
    """Return some jobs to their present servers, remove others from some servers, and let two jobs grow on
    every server with room.

    The first of the two is drawn from all jobs, the second from those on the server.
    """
    servers, jobs = placement.shape
    reset = np.empty(jobs, dtype=np.bool_)
    thinned = np.empty(jobs, dtype=np.bool_)
    for job in range(jobs):
        reset[job] = draw.random() < RESET_SHARE
        thinned[job] = draw.random() < THINNED_SHARE
    free = question.capacity.copy()
    total = np.zeros(jobs, dtype=np.int64)
    own = np.full(servers, NOBODY)
    for server in range(servers):
        here, at_present = placement[server], question.present[server]
        known = 0
        for job in range(jobs):
            if reset[job]:
                here[job] = at_present[job]
            if here[job] == 0:
                continue
            if thinned[job] and draw.random() < THINNED_PART:
                here[job] = 0
                continue
            total[job] += here[job]
            free[server] -= here[job] * question.width[job]
            known += 1
            if int(draw.random() * known) == 0:
                own[server] = job
    for server in range(servers):
        if free[server] > 0:
            job = _fitting(question.width, free[server], int(draw.random() * jobs))
            if job != NOBODY:
                _grow(question, placement, free, total, server, job, draw)
        job = own[server]
        if job != NOBODY and question.width[job] <= free[server]:
            _grow(question, placement, free, total, server, job, draw)


@kernel
def _fitting(width: IntArray, free: int, first: int) -> int:
    """The first job from ``first`` on, cyclically, whose worker fits."""
    for step in range(width.size):
        job = (first + step) % width.size
        if width[job] <= free:
            return job
    return NOBODY


@kernel
def _grow(
    question: Question,
    placement: WorkerCounts,
    free: IntArray,
    total: IntArray,
    server: int,
    job: int,
    draw: np.random.Generator,
) -> None:
    """Draw the job's workers on a server, from the present number to all that fit an empty server, up to its
    most.

    A job too large for one server starts on several. A job with its most workers is skipped: more workers
    here would only move it, since `repair` removes as many elsewhere.
    """
    width = question.width[job]
    whole = question.capacity[server] // width
    if total[job] == 0 and question.least[job] > whole:
        _start_on_several(question, placement, free, total, server, job)
        return
    room = min(whole - placement[server, job], question.most[job] - total[job])
    if room > 0:
        more = int(draw.random() * (room + 1))
        placement[server, job] += more
        total[job] += more
        free[server] -= more * width


@kernel
def _start_on_several(
    question: Question, placement: WorkerCounts, free: IntArray, total: IntArray, first: int, job: int
) -> None:
    """Place the job's least number of workers on several servers: first those with room, then those
    without."""
    servers, width, missing = free.size, question.width[job], question.least[job]
    for anywhere in range(2):
        for step in range(servers):
            server = (first + step) % servers
            room = (question.capacity[server] if anywhere == 1 else free[server]) // width
            number = min(missing, room - placement[server, job])
            if number > 0:
                placement[server, job] += number
                total[job] += number
                free[server] -= number * width
                missing -= number


@kernel
def repair(question: Question, placement: WorkerCounts, draw: np.random.Generator) -> None:
    """Remove workers until the placement is allowed; an allowed placement stays as it is.

    In this order: at most one job on each server that also has workers elsewhere; no job above its most
    workers (removed from a randomly drawn server on); no server above its GPUs; only allowed numbers of
    workers.
    """
    servers, jobs = placement.shape
    total = np.zeros(jobs, dtype=np.int64)
    hosts = np.zeros(jobs, dtype=np.int64)
    where = np.empty(servers * jobs, dtype=np.int64)
    entries = 0
    for server in range(servers):
        for job in range(jobs):
            if placement[server, job] > 0:
                total[job] += placement[server, job]
                hosts[job] += 1
                where[entries] = server * jobs + job
                entries += 1
    _keep_apart(placement, total, hosts, where[:entries])
    for job in range(jobs):
        if total[job] > question.most[job]:
            _cut(placement, total, job, question.most[job], int(draw.random() * servers))
    last, free = -1, 0
    for entry in range(entries):
        server, job = divmod(where[entry], jobs)
        if server != last:
            last, free = server, question.capacity[server]
        number = placement[server, job]
        fits = min(number, free // question.width[job])
        placement[server, job] = fits
        total[job] -= number - fits
        free -= fits * question.width[job]
    for job in range(jobs):
        listed = question.listed[job, total[job]]
        if listed < total[job]:
            _cut(placement, total, job, listed, int(draw.random() * servers))


@kernel
def _keep_apart(placement: WorkerCounts, total: IntArray, hosts: IntArray, where: IntArray) -> None:
    """On each server, keep only the first of the jobs that run on several servers."""
    jobs = total.size
    taken = -1
    for entry in where:
        server, job = divmod(entry, jobs)
        if hosts[job] < 2:
            continue
        if taken == server:
            total[job] -= placement[server, job]
            placement[server, job] = 0
        taken = server


@kernel
def _cut(placement: WorkerCounts, total: IntArray, job: int, most: int, first: int) -> None:
    """Limit a job to ``most`` workers; those on servers from ``first`` on are kept."""
    servers = placement.shape[0]
    kept = 0
    for step in range(servers):
        server = (first + step) % servers
        number = min(placement[server, job], most - kept)
        placement[server, job] = number
        kept += number
    total[job] = kept
