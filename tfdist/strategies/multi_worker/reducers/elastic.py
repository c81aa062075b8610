"""The life of a reducer in an elastic job: it sums for one group of ranks after the other."""

from __future__ import annotations

import os
import threading

from tfdist import compat
from tfdist.cluster.addresses import without_proxy
from tfdist.elastic import membership
from tfdist.elastic.formation import Formation
from tfdist.strategies.multi_worker.group_engine import ABORTED, is_sign_of_loss
from tfdist.strategies.multi_worker.reducers.reducer import Reducer, ends_with_others
from tfdist.strategies.multi_worker.reducers.told import pair_of


def serve_groups(address: str) -> None:
    """Sums until the job has ended.

    Args:
        address: where this process listens.

    Raises:
        LauncherGoneError: when there is no launcher any more.
    """
    ends_with_others()
    life = _Life(address)
    link = membership.own_link()
    link.listen(life.interrupt)
    while True:
        link.say("ready", generation=life.generation, address=address)
        formation = link.next_formation()
        if formation is None:
            return
        if life.form(formation):
            link.say("formed", generation=formation.generation)
            if link.waits_for("go", formation.generation):
                life.begin()
                if link.waits_for("end", formation.generation):
                    life.end()
                    return
        life.leave()


class _Life:
    """A reducer in groups that change.

    Args:
        address: where this process listens.

    Attributes:
        generation: the number of the group; 0 before the first one.
    """

    def __init__(self, address: str):
        self.generation = 0
        self._address = address
        self._own = membership.number()
        self._reducer: Reducer | None = None
        self._no_more = 0  # the highest number of a group that is no more
        self._changing = threading.Lock()

    def form(self, formation: Formation) -> bool:
        """Connects this process to the members of a group. Returns whether it could."""
        with self._changing:
            self.generation = formation.generation
            if self.generation <= self._no_more:
                return False
            os.environ.update(without_proxy(os.environ, formation.addresses))
            place = list(formation.reducers).index(self._own)
            reducers = len(formation.reducers)
            pairs = [
                pair_of(rank, place, reducers, self.generation)
                for rank in range(len(formation.members))
            ]
            name = f"reducer {self._own} ({self._address})"
            self._reducer = Reducer(pairs, reducers, name)
            try:
                compat.form_group(formation.places, self._own, formation.reducer_places)
            except Exception as error:
                if not is_sign_of_loss(error):
                    raise
                return False
        return True

    def begin(self) -> None:
        """Begins to sum, now that all have formed the group."""
        with self._changing:
            if self._reducer is not None and self.generation > self._no_more:
                self._reducer.begin()

    def end(self) -> None:
        """Notes that there is nothing to sum any more: connections that break are no errors."""
        if self._reducer is not None:
            self._reducer.has_ended.set()

    def leave(self) -> None:
        """Leaves a group that is no more."""
        with self._changing:
            reducer, self._reducer = self._reducer, None
            if reducer is not None:
                reducer.has_ended.set()
                compat.abort_group(ABORTED)
        if reducer is not None:
            reducer.wait()

    def interrupt(self, generation: int) -> None:
        """Frees this process from waiting for a group that is no more; in another thread."""
        self._no_more = max(self._no_more, generation)
        with self._changing:
            if self.generation == generation and self._reducer is not None:
                self._reducer.has_ended.set()
                compat.abort_group(ABORTED)
