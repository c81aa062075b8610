"""How many updates a worker should make in one call."""

from __future__ import annotations

import threading

from tfdist.parameter_server.own_updates.ledger import MOST

# Each call costs the chief some milliseconds. So that this does not grow with the workers, some
# call ends every half second, whoever made it. The progress bar moves then.
_BETWEEN_ENDS = 0.5
_LONGEST = 2.0
# At the end of an epoch workers wait for the last one. This is no longer than calls cost otherwise.
_SHORTEST = 0.1

# Where differences are pulled, the first weights of a call travel whole.
_LEAST_WITH_DIFFERENCES = 16


class Pace:
    """Chooses so many updates that of all workers' calls one ends about every half second.

    A call takes two seconds at most. Near the end of an epoch, workers that are ready take their
    share of what is left, as in Polychronopoulos and Kuck, "Guided Self-Scheduling" (IEEE
    Transactions on Computers C-36(12), 1987), but no calls shorter than a tenth of a second.

    Args:
        workers: the number of workers.
        differences: whether workers are sent differences of the weights: then a call has at least
            16 updates, while so many batches are left.
    """

    def __init__(self, workers: int, differences: bool = False):
        self._workers = workers
        self._least = _LEAST_WITH_DIFFERENCES if differences else 1
        self._wanted = min(_LONGEST, workers * _BETWEEN_ENDS)
        self._seconds = self._wanted
        self._lock = threading.Lock()

    def note(self, updates: int, seconds: float) -> None:
        """Notes how long a call took."""
        with self._lock:
            self._seconds += (seconds / updates - self._seconds) / 2

    def size(self, left: int | None) -> int:
        """How many updates the next call should have, when `left` batches are left."""
        wanted = max(self._least, min(MOST, int(self._wanted / self._seconds)))
        if left is None:
            return wanted
        shortest = max(1, min(MOST, int(_SHORTEST / self._seconds)))
        return max(1, min(wanted, left, max(shortest, left // self._workers)))
