"""When an idle worker computes a part of a global batch that another worker has not finished."""

from __future__ import annotations

import math
from collections.abc import Collection

from tfdist.parameter_server.data.durations import Durations


class Backups(Durations):
    """Chooses a part for an idle worker. Each part is computed by at most two workers at a time."""

    def choose(self, worker: int, open_parts: Collection[int]) -> tuple[int | None, float | None]:
        """The part that `worker` should compute too, or in how many seconds to ask again.

        Args:
            worker: an idle worker.
            open_parts: the parts of the present global batch that were begun and not used yet.

        Returns:
            `(part, None)`, or `(None, seconds)`; `(None, None)` to wait until something changes.
        """
        soonest = math.inf
        for part in sorted(open_parts):
            seconds = self.patience(worker, part)
            if seconds == 0:
                return part, None
            soonest = min(soonest, seconds)
        return None, None if soonest == math.inf else soonest
