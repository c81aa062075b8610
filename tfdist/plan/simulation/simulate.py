"""Trains with a policy of `tfdist.staleness`, on a virtual clock."""

from __future__ import annotations

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.events import Events
from tfdist.plan.simulation.runs import (
    Policy,
    Run,
    asynchronous,
    largest_lead,
    synchronous,
    waits_for_the_lead_alone,
)


def simulate(times: Times, policy: Policy, exchange: float = 0.0, update: float = 0.0) -> Run:
    """Simulates workers that compute in these times, with this policy.

    Args:
        times: seconds in which each worker computes a gradient, of shape `[steps, workers]`.
        policy: a policy of `tfdist.staleness`. `Synchronous` may have `drop`, and neither `backup`
            nor several parts for each worker.
        exchange: seconds that each step takes besides.
        update: seconds of an asynchronous chief for each gradient.

    Returns:
        When gradients were used, and how stale they were.

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
    workers = times.shape[1]
    if policy.synchronous:
        if getattr(policy, "backup", False) or policy.parts(workers) != workers:
            raise ValueError(
                "Backup workers and several parts for each worker are not simulated. "
                f"Received: policy={policy!r}"
            )
        return synchronous(times, exchange, getattr(policy, "drop", 0))
    whole = times + exchange
    if update == 0.0 and waits_for_the_lead_alone(policy, workers, len(times)):
        slack = largest_lead(policy, workers, len(times))
        return asynchronous(whole, slack, accepts=policy.accepts if policy.drops else None)
    return Events(whole, policy, update).run()
