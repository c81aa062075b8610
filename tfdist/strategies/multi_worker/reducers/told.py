"""What the first worker tells the reducers: the exchanges, before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.strategies.multi_worker.reducers.exchange import DTYPES, Cut, Pair

# Above the numbers of all other groups: those of `pairs.py` begin at 2**30 + 2**29.
_FIRST_GROUP = 2**30 + 2**29 + 2**28
_FIRST_NEWS = 2**30
# Messages of a group that is no more never meet those of the next ones.
_PAIRS, _GENERATIONS = 2**20, 2**8


def pair_of(worker: int, reducer: int, reducers: int, generation: int = 0) -> Pair:
    """The pair of a worker and a reducer; both give it the same number.

    Args:
        worker: the rank of the worker.
        reducer: the place of the reducer among the reducers.
        reducers: the number of reducers.
        generation: the number of the group of workers, if it changes.
    """
    first = _FIRST_GROUP + generation % _GENERATIONS * _PAIRS
    return Pair(worker, reducer, first + worker * reducers + reducer)


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
