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

    A call takes two seconds at most. Near the end of an epoch, a worker that is ready takes its
    share of what is left, by its speed: Polychronopoulos and Kuck, "Guided Self-Scheduling" (IEEE
    Transactions on Computers C-36(12), 1987), with the weights of Hummel et al., "Load-Sharing in
    Heterogeneous Systems via Weighted Factoring" (SPAA 1996). But no calls are shorter than a tenth
    of a second.

    Args:
        workers: the number of workers.
        differences: whether workers are sent differences of the weights: then a call has at least
            16 updates, while so many batches are left.
    """

    def __init__(self, workers: int, differences: bool = False):
        self._least = _LEAST_WITH_DIFFERENCES if differences else 1
        self._wanted = min(_LONGEST, workers * _BETWEEN_ENDS)
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
        wanted = max(self._least, min(MOST, int(self._wanted / own)))
        if left is None:
            return wanted
        shortest = max(1, min(MOST, int(_SHORTEST / own)))
        return max(1, min(wanted, left, max(shortest, int(share * left))))
