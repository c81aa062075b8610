"""The callback that moves the shares, and tells what an epoch's replicas had to wait for."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

from tfdist.balance.balancer import Balancer


class Balance(keras.callbacks.Callback):
    """Moves the shares of the replicas between steps, and reports them once in an epoch.

    Args:
        balancer: has the shares.
        reports: whether this process shows what it has found; asked at the end of an epoch.
    """

    # It does the same in all processes, and neither changes the model nor writes files.
    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, balancer: Balancer, reports: Callable[[], bool]):
        super().__init__()
        self._balancer = balancer
        self._reports = reports
        self._shown = balancer.shares

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Moves the shares if the last steps say so."""
        self._balancer.adjust()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Shows the shares and the slowest replica, if the shares have moved in this epoch."""
        shares = self._balancer.shares
        has_moved, self._shown = shares is not self._shown, shares
        speeds = self._balancer.speeds_of_last_steps()
        is_known = len(shares) > 1 and bool((speeds > 0).all())
        if has_moved and is_known and self._reports() and (self.params or {}).get("verbose"):
            print(f"\n{described(speeds, shares)}")


def described(speeds: np.ndarray, shares: np.ndarray) -> str:
    """What the replicas' speeds and shares come to.

    Args:
        speeds: samples per second, of shape `[replicas]`, all above 0.
        shares: of the global batch, of shape `[replicas]`.
    """
    slowest = int(speeds.argmin())
    seconds = 1 / speeds  # of each replica for its part, if parts were even
    others = np.delete(seconds, slowest)
    waits = 1 - others.mean() / seconds[slowest]
    listed = ", ".join(f"{share:.0%}" for share in shares)
    return (
        f"Replica {slowest} takes {seconds[slowest] / seconds.min():.1f}x as long for a sample as "
        f"the fastest one; with even parts the others would wait {waits:.0%} of the step. "
        f"Shares of a batch: {listed}"
    )
