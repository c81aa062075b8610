"""Training on a virtual clock: who waits for whom, and how stale gradients become.

The policies are those of `tfdist.staleness`, which answer here as they do in a live chief. Where an
answer depends only on how far a worker is ahead, all workers are simulated at once, step by step.
Which gradients are dropped is asked for one after the other. `in_turn.py` has the policy whose
updates wait so that no gradient becomes too stale. With all other policies `events.py` plays one
event after the other, and so does `parts.py` where synchronous workers help each other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tfdist.plan.simulation.compute_times import Times


class Policy(Protocol):
    """What is asked of a `tfdist.staleness.StalenessPolicy`."""

    synchronous: bool

    def parts(self, workers: int) -> int:
        """Into how many parts the workers divide a global batch; asked if `synchronous`."""

    @property
    def drops(self) -> bool:
        """Whether gradients may be dropped."""

    def may_start(self, ahead: int, under_way: int) -> bool:
        """Whether a worker may start a step."""

    def may_update(self, others: Sequence[int]) -> bool:
        """Whether an update may come before those under way."""

    def accepts(self, staleness: int) -> bool:
        """Whether a gradient of this staleness is applied."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Simulated training.

    Attributes:
        times: when gradients were used, ascending, in seconds.
        staleness: of each of these, in updates.
        dropped: how many further gradients were dropped.
    """

    times: Times
    staleness: npt.NDArray[np.int64]
    dropped: int = 0

    def seconds(self, gradients: int) -> float:
        """When so many gradients had been used.

        Raises:
            ValueError: when the run is too short.
        """
        if not 1 <= gradients <= len(self.times):
            raise ValueError(
                f"The run has {len(self.times)} gradients: simulate more steps. "
                f"Received: gradients={gradients}"
            )
        return float(self.times[gradients - 1])


def synchronous(times: Times, exchange: float = 0.0, drop: int = 0) -> Run:
    """All workers compute parts of one batch, and wait for each other.

    Args:
        times: seconds in which each worker computes, of shape `[steps, workers]`.
        exchange: seconds of each step in which gradients are exchanged after that.
        drop: an update does not wait for so many of the slowest workers, whose work is lost.

    Raises:
        ValueError: when `drop` leaves nobody.
    """
    workers = times.shape[1]
    used = workers - drop
    if not 0 <= drop < workers:
        raise ValueError(f"`drop` must be from 0 to {workers - 1}. Received: drop={drop}")
    ends = np.cumsum(np.partition(times, used - 1, axis=1)[:, used - 1] + exchange)
    steps = len(times)
    return Run(np.repeat(ends, used), np.zeros(steps * used, np.int64), steps * drop)


def local_steps(times: Times, steps: int, exchange: float = 0.0) -> Run:
    """Workers train apart, and meet once in a round of `steps` updates.

    Args:
        times: seconds in which each worker computes, of shape `[steps of all rounds, workers]`;
            what does not fill a round is left out.
        steps: H, the updates of a round.
        exchange: seconds of the exchange at the end of a round.

    Raises:
        ValueError: for fewer steps than one.
    """
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    rounds = len(times) // steps
    workers = times.shape[1]
    each = times[: rounds * steps].reshape(rounds, steps, workers).sum(axis=1)
    ends = np.cumsum(each.max(axis=1) + exchange)
    count = steps * workers
    return Run(np.repeat(ends, count), np.zeros(rounds * count, np.int64))


def asynchronous(
    times: Times,
    slack: int | None = None,
    with_staleness: bool = True,
    accepts: Callable[[int], bool] | None = None,
) -> Run:
    """Workers that do not wait, but for those who are more than `slack` steps ahead.

    A gradient is used when it is there, and the worker begins its next step. The run ends when the
    first worker has no more steps, as all gradients until then are known. Of two gradients that
    come at the same moment that of the worker with the lower number is used first.

    Args:
        times: seconds of a step, of shape `[steps, workers]`, the reading of the weights and the
            sending of the gradient included.
        slack: how many steps a worker may be ahead of the slowest when it starts; None for any.
        with_staleness: whether to count it, which takes longer.
        accepts: whether a gradient of a staleness is used, or dropped; None to use all.
    """
    steps, workers = times.shape
    # By worker: sorted like this, those of one moment are in the order of the workers.
    by_worker = np.empty((workers, steps))
    ready = np.zeros(workers)
    for step in range(steps):
        if slack is not None and step > slack:
            ready = np.maximum(ready, by_worker[:, step - slack - 1].max())
        ready = by_worker[:, step] = ready + times[step]
    ended = by_worker.ravel()
    end = ended[steps - 1 :: steps].min()
    if not with_staleness and accepts is None:
        used = np.sort(ended[ended <= end])
        return Run(used, np.zeros(len(used), np.int64))
    order = np.argsort(ended, kind="stable")
    order = order[: np.searchsorted(ended[order], end, "right")]
    before = _gradients_before(order, steps, workers, slack)[order]
    if accepts is None:
        return Run(ended[order], np.arange(len(order)) - before)
    updates = _updates_before(before, accepts)
    is_used = np.diff(updates) > 0
    staleness = updates[:-1] - updates[before]
    return Run(ended[order][is_used], staleness[is_used], int(np.sum(~is_used)))


def _gradients_before(
    order: npt.NDArray[np.int64], steps: int, workers: int, slack: int | None
) -> npt.NDArray[np.int64]:
    """How many gradients had come when the weights for each one were read, by worker and step.

    Weights are read right after the worker's own last gradient, or after that of the slowest worker
    for which this one has waited.
    """
    places = np.full(workers * steps, len(order), np.int64)
    places[order] = np.arange(len(order))
    place = places.reshape(workers, steps)
    before = np.zeros_like(place)
    before[:, 1:] = place[:, :-1] + 1
    if slack is not None and slack + 1 < steps:
        slowest = place[:, : steps - slack - 1].max(axis=0) + 1
        before[:, slack + 1 :] = np.maximum(before[:, slack + 1 :], slowest)
    return before.ravel()


def _updates_before(
    before: npt.NDArray[np.int64], accepts: Callable[[int], bool]
) -> npt.NDArray[np.int64]:
    """How many updates there have been before each gradient, and after the last one."""
    updates = np.zeros(len(before) + 1, np.int64)
    # Faster than the arrays themselves for single elements.
    counted, is_accepted = updates.data, functools.cache(accepts)
    now = 0
    for number, read in enumerate(before.data, 1):
        now += is_accepted(now - counted[read])
        counted[number] = now
    return updates


def largest_lead(policy: Policy, workers: int, steps: int) -> int | None:
    """How far ahead of the slowest a worker may be; None for any lead.

    Args:
        policy: whether a worker may start depends on the lead alone.
        workers: the number of workers.
        steps: the longest lead that can come up.
    """
    if policy.may_start(steps, workers):
        return None
    allowed = [ahead for ahead in range(steps + 1) if policy.may_start(ahead, 0)]
    return max(allowed, default=0)


def waits_for_the_lead_alone(policy: Policy, workers: int, steps: int) -> bool:
    """Whether nobody waits for anything but slower workers, whatever else is under way."""
    leads = {0, 1, steps // 2, steps}
    starts = all(policy.may_start(ahead, 0) == policy.may_start(ahead, workers) for ahead in leads)
    return starts and policy.may_update([workers * steps] * (workers - 1))
