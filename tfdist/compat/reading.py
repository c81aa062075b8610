"""The reading of distributed data in Python."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.registry import READ, REPLACED, TENSORFLOW, touch

_ITERATOR = "tensorflow.python.distribute.input_lib:DistributedIteratorBase"
_WHY: dict[str, str] = {
    "why": "processes compare their data in a user's own loop, too",
    "versions": TENSORFLOW,
    "instead": "a public class of distributed iterators",
}
_GET_NEXT = touch(_ITERATOR, "get_next", REPLACED, "self", "name", **_WHY)
_STRATEGY = touch(_ITERATOR, "_strategy", READ, **_WHY)


def hook_reading(hook: Callable[[tf.distribute.Strategy, str], None]) -> None:
    """Calls `hook(strategy, what)` now and then while Python reads distributed data.

    `what` is "has read N batches", with 2, 4, 8 and so on up to 1024 and its multiples, or "has
    read all batches". One batch alone may be a look at the data.
    """
    counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def get_next(self: Any, name: str | None = None) -> Any:
            if not tf.executing_eagerly():
                return original(self, name)
            try:
                batch = original(self, name)
            except tf.errors.OutOfRangeError:
                hook(_STRATEGY.of(self), "has read all batches")
                raise
            count = counts[self] = counts.get(self, 0) + 1
            if count > 1 and (count % 1024 == 0 or (count < 1024 and not count & (count - 1))):
                hook(_STRATEGY.of(self), f"has read {count} batches")
            return batch

        return get_next

    _GET_NEXT.replace(make)
