"""What the first worker tells the reducers: the exchanges, before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.strategies.multi_worker.reducers.exchange import DTYPES, Cut, Pair

# Above the numbers of all other groups: those of `pairs.py` begin at 2**30 + 2**29.
_FIRST_GROUP = 2**30 + 2**29 + 2**28
_FIRST_NEWS = 2**30


def pair_of(worker: int, reducer: int, reducers: int) -> Pair:
    """The pair of a worker and a reducer; both give it the same number."""
    return Pair(worker, reducer, _FIRST_GROUP + worker * reducers + reducer)


class Told(NamedTuple):
    """An exchange that is used again and again.

    Attributes:
        cut: of its vectors.
        first: the number of its first message.
    """

    cut: Cut
    first: int


def tell(pairs: Sequence[Pair], told: Told, place: int) -> None:
    """Tells the reducers of an exchange; outside of a `tf.function`.

    Args:
        pairs: the first worker, and each reducer.
        told: the exchange.
        place: its place among all that are told.
    """
    cut, first = told
    numbers = tf.constant([first, cut.elements, DTYPES.index(cut.dtype)], tf.int64)
    for pair in pairs:
        pair.send(numbers, _FIRST_NEWS + place)


def await_told(pair: Pair, reducers: int, place: int) -> Told:
    """Waits for the exchange with this place among all that are told.

    Args:
        pair: the first worker and this reducer.
        reducers: the number of reducers.
        place: as above.
    """
    first, elements, dtype = map(int, pair.receive(3, tf.int64, _FIRST_NEWS + place).numpy())
    return Told(Cut(elements, DTYPES[dtype], reducers), first)
