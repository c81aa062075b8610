"""Which shares of a global batch the replicas should have, by their measured speeds."""

from __future__ import annotations

import numpy as np

# Shares are decided by the medians of so many steps, and stay for at least as many.
STEPS = 10
# New shares must save at least this part of the step, so that noise does not move them.
_WORTHWHILE = 0.08


def new_shares(
    speeds: np.ndarray, shares: np.ndarray, max_share: float | None = None
) -> np.ndarray | None:
    """The shares with which all replicas would take equally long; None to keep those they have.

    A replica with the share f of n samples and the speed s computes for f * n / s seconds, and a
    step takes as long as the slowest replica.

    Args:
        speeds: float64 of shape `[steps, replicas]`, samples per second in the last steps; 0 where
            a replica had no samples.
        shares: float64 of shape `[replicas]`, the replicas' shares in these steps.
        max_share: the largest share that a replica may have; None for no bound.

    Returns:
        float64 of shape `[replicas]` with the sum 1.
    """
    typical = median_speeds(speeds)
    if not (typical > 0).all():
        return None
    best = _bounded(typical, max_share)
    saved = 1 - (best / typical).max() / (shares / typical).max()
    return best if saved >= _WORTHWHILE else None


def median_speeds(speeds: np.ndarray) -> np.ndarray:
    """For each replica the median over the steps in which it had samples; 0 where it had none."""
    columns = [column[column > 0] for column in speeds.T]
    return np.array([np.median(column) if column.size else 0.0 for column in columns])


def _bounded(speeds: np.ndarray, max_share: float | None) -> np.ndarray:
    """Shares in proportion to `speeds`; what a replica may not take goes to the others."""
    shares = speeds / speeds.sum()
    if max_share is None:
        return shares
    full = np.zeros(len(speeds), bool)
    while (shares > max_share).any():
        full |= shares >= max_share
        if full.all():
            return np.full(len(speeds), 1 / len(speeds))
        rest = 1 - max_share * full.sum()
        shares = np.where(full, max_share, speeds * rest / speeds[~full].sum())
    return shares
