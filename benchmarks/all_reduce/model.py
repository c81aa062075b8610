"""The link of the α–β model of `tfdist/plan/alpha_beta.py`, from measured messages.

The model knows neither the time of additions nor that of processors, which the ranks of this
benchmark share.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfdist.plan.alpha_beta import Link

# In bytes: what is as good as empty, and messages that are long enough for the rate of a limited
# link. The limiter lets the first bytes through at once, so the rate is taken from the slope.
EMPTY, LONG = 1_000, (1_000_000, 2_000_000, 4_000_000)


def fitted(times: Mapping[int, float]) -> Link:
    """The link on which messages took so long.

    Args:
        times: seconds by the bytes of the message, for `EMPTY` and `LONG`.

    Raises:
        RuntimeError: when longer messages did not take longer.
    """
    beta = float(np.polyfit(LONG, [times[size] for size in LONG], 1)[0])
    # Where they took equally long, rounding may leave a slope.
    if beta * LONG[-1] <= 1e-6 * times[LONG[-1]]:
        raise RuntimeError(
            "Longer messages must take longer; check what else runs on this machine. Received: "
            + ", ".join(f"{size} bytes in {1000 * times[size]:.3g} ms" for size in sorted(times))
        )
    return Link(max(times[EMPTY] - EMPTY * beta, 0.0), beta)
