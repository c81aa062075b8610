"""What the last groups of an elastic job need, such as a server at which their ranks meet."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from tfdist.cluster.machines import Location

# Ranks that form a group may be so many groups behind. Of groups of one rank, many may be formed at
# the same time: each new rank is alone at first.
_KEPT, _KEPT_OF_ONE = 8, 256


class Recent:
    """Makes the variables of groups, and keeps what the last ones need; a context manager.

    Args:
        make: makes the variables for a group of ranks, from where each is, as a context.
    """

    def __init__(
        self, make: Callable[[Sequence[Location]], AbstractContextManager[list[dict[str, str]]]]
    ):
        self._make = make
        self._open: dict[bool, collections.deque[AbstractContextManager]]
        self._open = {is_of_one: collections.deque() for is_of_one in (False, True)}

    def variables(self, ranks: Sequence[Location]) -> Sequence[Mapping[str, str]]:
        """The variables for a group of ranks, from where each of them is."""
        context = self._make(ranks)
        found = context.__enter__()
        is_of_one = len(ranks) == 1
        kept = self._open[is_of_one]
        kept.append(context)
        if len(kept) > (_KEPT_OF_ONE if is_of_one else _KEPT):
            # A server takes up to half a second to end.
            close = kept.popleft().__exit__
            threading.Thread(target=close, args=(None, None, None), daemon=True).start()
        return found

    def __enter__(self) -> Recent:
        return self

    def __exit__(self, *exception: object) -> None:
        for kept in self._open.values():
            while kept:
                kept.pop().__exit__(None, None, None)
