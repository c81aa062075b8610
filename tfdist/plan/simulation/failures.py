"""Elastic training with workers that die and come back, on a virtual clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tfdist.plan.simulation.compute_times import Times

_MOST_TRIES = 10_000  # of one step


@dataclasses.dataclass(frozen=True)
class Faults:
    """How often workers die, and what that costs.

    Attributes:
        mtbf: the mean seconds until one worker dies (mean time between failures), exponentially
            distributed.
        recovery: seconds until the others go on, with the step repeated.
        absence: seconds until another worker has taken the place.

    Raises:
        ValueError: when a value is out of range.
    """

    mtbf: float
    recovery: float
    absence: float

    def __post_init__(self) -> None:
        if not (self.mtbf > 0 and self.recovery >= 0 and self.absence >= 0):
            raise ValueError(
                "`mtbf` must be greater than 0, and `recovery` and `absence` at least 0. "
                f"Received: {self}"
            )


@dataclasses.dataclass(frozen=True)
class Survived:
    """Elastic training.

    Attributes:
        seconds: of the whole run.
        worker_steps: the steps of single workers that counted.
        failures: how many workers died.
    """

    seconds: float
    worker_steps: int
    failures: int


def elastic(
    times: Times,
    faults: Faults,
    random: np.random.Generator,
    exchange: Callable[[int], float] = lambda workers: 0.0,
) -> Survived:
    """Synchronous steps of those workers that are there.

    When a worker dies in a step, the others meet again and repeat the step without it.

    Args:
        times: seconds in which each worker computes, of shape `[steps, workers]`.
        faults: how often workers die.
        random: draws who dies, and when.
        exchange: seconds of the exchange between so many workers.

    Raises:
        ValueError: when a step is so long that workers die before it ends, again and again.
    """
    back = np.zeros(times.shape[1])
    clock, worker_steps, failures = 0.0, 0, 0
    for step in times:
        before = failures
        while True:
            if failures - before > _MOST_TRIES:
                raise ValueError(
                    f"A step of {float(step.max()):g} s was repeated {_MOST_TRIES:,} times, as "
                    f"workers die before it ends: no job gets on like this. Received: {faults}"
                )
            there = np.flatnonzero(back <= clock)
            if not len(there):
                clock = float(back.min())
                continue
            seconds = float(step[there].max()) + exchange(len(there))
            until_death = random.exponential(faults.mtbf / len(there))
            if until_death >= seconds:
                break
            failures += 1
            clock += until_death
            back[random.choice(there)] = clock + faults.absence
            clock += faults.recovery
        clock += seconds
        worker_steps += len(there)
    return Survived(clock, worker_steps, failures)
