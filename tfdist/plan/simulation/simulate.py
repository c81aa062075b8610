"""Trains with a policy of `tfdist.staleness`, on a virtual clock."""

from __future__ import annotations

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.events import Events
from tfdist.plan.simulation.in_turn import bound_that_waits, in_turn
from tfdist.plan.simulation.parts import Parts
from tfdist.plan.simulation.runs import (
    Policy,
    Run,
    asynchronous,
    largest_lead,
    synchronous,
    waits_for_the_lead_alone,
)


def simulate(
    times: Times, policy: Policy, exchange: float = 0.0, update: float = 0.0, part: float = 0.0
) -> Run:
    """Simulates workers that compute in these times, with this policy.

    Args:
        times: seconds in which each worker computes a gradient, of shape `[steps, workers]`. With
            `Synchronous(parts_per_worker=k)` each part takes a k-th of it, and a worker's time is
            that of the step in which it begins a part.
        policy: a policy of `tfdist.staleness`. `Synchronous` may have `parts_per_worker` and either
            `backup` or, with one part for each worker, `drop`.
        exchange: seconds that each step takes besides.
        update: seconds of an asynchronous chief for each gradient.
        part: seconds that each part takes a worker besides, with `Synchronous`.

    Returns:
        When gradients were used, and how stale they were. A step of `Synchronous` uses as many as
        there are workers, but for those that it drops. With `backup`, `dropped` is the number of
        parts that were computed in vain.

    Raises:
        ValueError: for what is not simulated.

    Example:

    >>> import numpy as np
    >>> from tfdist.plan.simulation.simulate import simulate
    >>> from tfdist.staleness import SSP, Synchronous
    >>> times = np.tile([1.0, 1.0, 5.0], (100, 1))
    >>> [simulate(times, policy).seconds(60) for policy in (Synchronous(), SSP(3))]
    [100.0, 90.0]
    """
    if policy.synchronous:
        return _synchronous(times, policy, exchange, part)
    workers = times.shape[1]
    whole = times + exchange
    if update == 0.0 and waits_for_the_lead_alone(policy, workers, len(times)):
        slack = largest_lead(policy, workers, len(times))
        return asynchronous(whole, slack, accepts=policy.accepts if policy.drops else None)
    bound = bound_that_waits(policy, workers, len(times))
    if bound is not None:
        return in_turn(whole, bound, update)
    return Events(whole, policy, update).run()


def _synchronous(times: Times, policy: Policy, exchange: float, part: float) -> Run:
    workers = times.shape[1]
    parts, drop = policy.parts(workers), getattr(policy, "drop", 0)
    backup = getattr(policy, "backup", False)
    if drop and parts != workers:
        raise ValueError(
            "`drop` together with several parts for each worker is not simulated: leave one of "
            f"them out. Received: policy={policy!r}"
        )
    of_parts = times / (parts / workers) + part
    if backup or parts != workers:
        return Parts(of_parts, parts, backup, exchange).run()
    return synchronous(of_parts, exchange, drop)
