"""What the last groups of an elastic job need, such as a server at which their ranks meet."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from tfdist.cluster.machines import Location

# Ranks that form a group may be so many groups behind.
_KEPT = 8


class Recent:
    """Makes the variables of groups, and keeps what the last ones need; a context manager.

    Each new rank is alone at first, and a rank that is alone meets nobody. So all such groups at
    one place have the same variables, which are kept to the end.

    Args:
        make: makes the variables for a group of ranks, from where each is, as a context.
    """

    def __init__(
        self, make: Callable[[Sequence[Location]], AbstractContextManager[list[dict[str, str]]]]
    ):
        self._make = make
        self._open: collections.deque[AbstractContextManager] = collections.deque()
        self._alone: dict[Location, list[dict[str, str]]] = {}
        self._to_the_end = contextlib.ExitStack()

    def variables(self, ranks: Sequence[Location]) -> Sequence[Mapping[str, str]]:
        """The variables for a group of ranks, from where each of them is."""
        if len(ranks) == 1:
            (place,) = ranks
            if place not in self._alone:
                self._alone[place] = self._to_the_end.enter_context(self._make(ranks))
            return self._alone[place]
        context = self._make(ranks)
        found = context.__enter__()
        self._open.append(context)
        if len(self._open) > _KEPT:
            # A server takes up to half a second to end.
            close = self._open.popleft().__exit__
            threading.Thread(target=close, args=(None, None, None), daemon=True).start()
        return found

    def __enter__(self) -> Recent:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)
        self._to_the_end.close()
