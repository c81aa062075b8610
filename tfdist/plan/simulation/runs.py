"""Training on a virtual clock: who waits for whom, and how stale gradients become.

The policies are those of `tfdist.staleness`, which answer here as they do in a live chief. Where an
answer depends only on how far a worker is ahead, all workers are simulated at once, step by step.
Otherwise `events.py` plays one event after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tfdist.plan.simulation.compute_times import Times


class Policy(Protocol):
    """What is asked of a `tfdist.staleness.StalenessPolicy`."""

    synchronous: bool

    @property
    def waits(self) -> bool:
        """Whether workers or updates may have to wait."""

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


def asynchronous(times: Times, slack: int | None = None, with_staleness: bool = True) -> Run:
    """Workers that do not wait, but for those who are more than `slack` steps ahead.

    A gradient is used when it is there, and the worker begins its next step. The run ends when the
    first worker has no more steps, as all gradients until then are known.

    Args:
        times: seconds of a step, of shape `[steps, workers]`, the reading of the weights and the
            sending of the gradient included.
        slack: how many steps a worker may be ahead of the slowest when it starts; None for any.
        with_staleness: whether to count it, which takes longer.
    """
    steps, workers = times.shape
    begun, ended = np.empty_like(times), np.empty_like(times)
    ready = np.zeros(workers)
    slowest = np.zeros(steps)  # when the slowest worker had finished each step
    for step in range(steps):
        if slack is not None and step > slack:
            ready = np.maximum(ready, slowest[step - slack - 1])
        begun[step] = ready
        ready = ready + times[step]
        ended[step] = ready
        slowest[step] = ready.max()
    end = ended[-1].min()
    is_known = ended <= end
    order = np.sort(ended[is_known])
    if not with_staleness:
        return Run(order, np.zeros(len(order), np.int64))
    # Updates between the reading of the weights and the gradient's own update.
    begins = begun[is_known]
    ends = ended[is_known]
    before = np.searchsorted(order, begins, "right")
    own = np.searchsorted(order, ends, "left")
    return Run(order, (own - before)[np.argsort(ends, kind="stable")])


def largest_lead(policy: Policy, workers: int, steps: int) -> int | None:
    """How far ahead of the slowest a worker may be; None for any lead.

    Args:
        policy: its answers may depend on the lead alone.
        workers: the number of workers.
        steps: the longest lead that can come up.
    """
    if policy.may_start(steps, workers):
        return None
    allowed = [ahead for ahead in range(steps + 1) if policy.may_start(ahead, 0)]
    return max(allowed, default=0)


def depends_on_the_lead_alone(policy: Policy, workers: int, steps: int) -> bool:
    """Whether a policy neither drops nor asks what else is under way."""
    if policy.drops:
        return False
    leads = {0, 1, steps // 2, steps}
    starts = all(policy.may_start(ahead, 0) == policy.may_start(ahead, workers) for ahead in leads)
    return starts and policy.may_update([workers * steps] * (workers - 1))
