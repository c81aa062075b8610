"""How long workers compute: usual times that vary, some workers that are slower, and stalls."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
"""Seconds of shape `[steps, workers]`, or seconds of one kind for each step or worker."""


@dataclasses.dataclass(frozen=True)
class ComputeTimes:
    """The distribution of the seconds in which a worker computes a gradient.

    The usual time is log-normal: the product of many small causes. A worker may be slower for good,
    and any step of any worker may stall.

    Args:
        workers: the number of workers.
        median: seconds of a usual step.
        spread: the standard deviation of the logarithm of the time; about the relative deviation.
        slower: for how many times as long the first workers compute, for good.
        stall_share: the part of all steps that stall.
        stall_factor: for how many times as long such a step takes.

    Raises:
        ValueError: when a value is out of range.

    Example:

    >>> import numpy as np
    >>> from tfdist.plan.simulation.compute_times import ComputeTimes
    >>> ComputeTimes(3, spread=0.0, slower=(5.0,)).draw(np.random.default_rng(0), 2)
    array([[5., 1., 1.],
           [5., 1., 1.]])
    """

    workers: int
    median: float = 1.0
    spread: float = 0.0
    slower: tuple[float, ...] = ()
    stall_share: float = 0.0
    stall_factor: float = 1.0

    def __post_init__(self) -> None:
        allowed = {
            "workers": self.workers >= max(1, len(self.slower)),
            "median": self.median > 0,
            "spread": self.spread >= 0,
            "slower": all(factor > 0 for factor in self.slower),
            "stall_share": 0 <= self.stall_share <= 1,
            "stall_factor": self.stall_factor > 0,
        }
        for name, is_allowed in allowed.items():
            if not is_allowed:
                raise ValueError(
                    "Times and factors are greater than 0, shares from 0 to 1, and there are as "
                    "many workers as are slower at least. "
                    f"Received: {name}={getattr(self, name)!r}"
                )

    def draw(self, random: np.random.Generator, steps: int) -> Times:
        """The seconds of so many steps of all workers.

        Args:
            random: draws the numbers.
            steps: the number of steps.

        Returns:
            Seconds of shape `[steps, workers]`.
        """
        shape = (steps, self.workers)
        times = np.full(shape, float(self.median))
        if self.spread:
            times *= random.lognormal(0.0, self.spread, shape)
        times[:, : len(self.slower)] *= self.slower
        if self.stall_share:
            times[random.random(shape) < self.stall_share] *= self.stall_factor
        return times
