"""How many updates a worker should make in one call."""

from __future__ import annotations

import threading

from tfdist.parameter_server.own_updates.ledger import MOST

# The progress bar moves at the end of a call. Each call costs the chief some milliseconds, so those
# of several workers are longer, which end more often together. But a worker that becomes slow in a
# long call keeps an epoch waiting.
_OF_ONE_WORKER = 0.5
_OF_SEVERAL = 1.0
# At the end of an epoch workers wait for the last one. This is no longer than calls cost otherwise.
_SHORTEST = 0.1

# Where differences are pulled, the first weights of a call travel whole.
_LEAST_WITH_DIFFERENCES = 16


class Pace:
    """Chooses so many updates that a call should take half a second; with several workers a second.

    Where workers share the batches of an epoch, each takes half of its share of what is left, by
    its speed, as in Hummel et al., "Load-Sharing in Heterogeneous Systems via Weighted Factoring"
    (SPAA 1996); but no calls are shorter than a tenth of a second.

    Args:
        workers: the number of workers.
        differences: whether workers are sent differences of the weights: then a call has at least
            16 updates, while so many batches are left.

    Attributes:
        shares: whether a worker may take the batches that another one has not taken.
    """

    def __init__(self, workers: int, differences: bool = False):
        self.shares = True
        self._least = _LEAST_WITH_DIFFERENCES if differences else 1
        self._wanted = _OF_ONE_WORKER if workers == 1 else _OF_SEVERAL
        self._seconds = [self._wanted] * workers  # of an update
        self._lock = threading.Lock()

    def note(self, worker: int, updates: int, seconds: float) -> None:
        """Notes how long a call of a worker took."""
        with self._lock:
            self._seconds[worker] += (seconds / updates - self._seconds[worker]) / 2

    def size(self, worker: int, left: int | None) -> int:
        """How many updates the worker's next call should have, when `left` batches are left."""
        with self._lock:
            own = self._seconds[worker]
            share = (1 / own) / sum(1 / seconds for seconds in self._seconds)
        # If it is not known how many are left, all batches of a call are read before it begins.
        seconds = _OF_ONE_WORKER if left is None else self._wanted
        wanted = max(self._least, min(MOST, int(seconds / own)))
        if left is None:
            return wanted
        if self.shares:
            shortest = max(1, min(MOST, int(_SHORTEST / own)))
            wanted = min(wanted, max(shortest, int(share * left / 2)))
        return max(1, min(wanted, left))
