"""How many updates a worker should make in one call."""

from __future__ import annotations

import threading

from tfdist.parameter_server.own_updates.ledger import MOST

# Longer calls save nothing, and let the progress bar and a short epoch's last worker wait.
_SECONDS = 0.5

# Where differences are pulled, the first weights of a call travel whole.
_LEAST_WITH_DIFFERENCES = 16


class Pace:
    """Chooses so many updates that a call takes half a second.

    Args:
        workers: the number of workers.
        differences: whether workers are sent differences of the weights: then a call has at least
            16 updates, while so many batches are left.
    """

    def __init__(self, workers: int, differences: bool = False):
        self._workers = workers
        self._least = _LEAST_WITH_DIFFERENCES if differences else 1
        self._seconds = _SECONDS
        self._lock = threading.Lock()

    def note(self, updates: int, seconds: float) -> None:
        """Notes how long a call took."""
        with self._lock:
            self._seconds += (seconds / updates - self._seconds) / 4

    def size(self, left: int | None) -> int:
        """How many updates the next call should have, when `left` batches are left."""
        wanted = max(self._least, min(MOST, int(_SECONDS / self._seconds)))
        if left is None:
            return wanted
        return max(1, min(wanted, left // (2 * self._workers)))
