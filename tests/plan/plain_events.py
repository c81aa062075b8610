"""Asynchronous training as plain as can be: everybody is asked everything, each time."""

from __future__ import annotations

import numpy as np

from tfdist.plan.simulation.runs import Policy, Run


def played(times: np.ndarray, policy: Policy, update: float = 0.0) -> Run:
    """What `Events` finds, which asks less."""
    steps, workers = times.shape
    finished = [0] * workers
    waiting = [*range(workers)]  # who waits for longest comes first
    read: dict[int, int] = {}  # the versions of gradients under way, the oldest first
    computing: list[tuple[float, int]] = []
    arrived: list[int] = []
    used: list[float] = []
    staleness: list[int] = []
    clock, version, dropped = 0.0, 0, 0

    def may_start(worker):
        return policy.may_start(finished[worker] - min(finished), len(read))

    def may_use(worker):
        versions = [then for other, then in read.items() if other != worker]
        return policy.may_update([later - then for later, then in enumerate(versions, version + 1)])

    while max(finished) < steps:
        while (worker := next(filter(may_start, waiting), None)) is not None:
            waiting.remove(worker)
            computing.append((clock + times[finished[worker], worker], worker))
            read[worker] = version
        if (worker := next(filter(may_use, arrived), None)) is not None:
            arrived.remove(worker)
            clock += update
            age = version - read.pop(worker)
            if policy.accepts(age):
                version += 1
                used.append(clock)
                staleness.append(age)
            else:
                dropped += 1
            finished[worker] += 1
            waiting.append(worker)
        elif computing:
            end, worker = min(computing)
            computing.remove((end, worker))
            clock = max(clock, end)
            arrived.append(worker)
        else:
            break
    return Run(np.array(used), np.array(staleness, np.int64), dropped)
