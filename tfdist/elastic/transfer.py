"""Sends values and results from one rank of a group to the others."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.elastic.state import Snapshot
from tfdist.engines.processes import PIECE_BYTES
from tfdist.structures import Structure

Carry = Callable[[tf.Tensor], tf.Tensor]


def state_of(
    carry: Carry,
    state: Snapshot | None,
    variables: Mapping[int, tf.Variable],
    leave_out: Collection[int] = (),
    *,
    is_root: bool,
) -> None:
    """Sets variables to their values in the state of one rank; called by all.

    Args:
        carry: sums a tensor over the ranks.
        state: the state of the root; None in other ranks.
        variables: those that are to be set, by number; none in ranks that have the state already.
        leave_out: the numbers of variables of which each rank has values of its own; of the root.
        is_root: whether this rank's state counts.
    """
    found = {} if state is None or not is_root else state.values
    sent = {number: value for number, value in found.items() if number not in leave_out}
    for number, arrived in values_of(carry, sent, is_root=is_root):
        if number in variables:
            variables[number].assign(arrived)


def values_of(
    carry: Carry, given: Mapping[int, tf.Tensor | np.ndarray], *, is_root: bool
) -> Iterator[tuple[int, np.ndarray]]:
    """The numbered values of one rank, one after the other; called by all, who iterate to the end.

    Args:
        carry: as for `state_of`.
        given: the values, all tensors or all arrays; anything in ranks that are not the root.
        is_root: as for `state_of`.
    """
    found = given if is_root else {}
    listed = [(n, tf.as_dtype(v.dtype).name, tuple(v.shape)) for n, v in found.items()]
    for number, name, shape in object_of(carry, listed, is_root=is_root):
        dtype = tf.as_dtype(name)
        value = np.asarray(found[number]) if is_root else np.zeros(shape, dtype.as_numpy_dtype)
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        yield number, _bytes_of(carry, data, is_root).view(value.dtype).reshape(shape)


def object_of(carry: Carry, given: object, *, is_root: bool) -> Any:
    """An object of one rank that can be pickled; called by all.

    Args:
        carry: as for `state_of`.
        given: the object; anything in ranks that are not the root.
        is_root: as for `state_of`.
    """
    data = np.frombuffer(pickle.dumps(given), np.uint8) if is_root else np.zeros(0, np.uint8)
    length = int(carry(tf.constant([data.size], tf.int64))[0])
    sent = _bytes_of(carry, data if is_root else np.zeros(length, np.uint8), is_root)
    return given if is_root else pickle.loads(sent.tobytes())


def result_of(carry: Carry, result: Structure, *, is_root: bool) -> Structure:
    """The result of an operation in one rank: a structure of tensors and plain values; as above."""
    sent = object_of(carry, without_tensors(result) if is_root else None, is_root=is_root)
    return result if is_root else received(sent)


def without_tensors(result: Structure) -> Any:
    """A result in a form that can be pickled."""
    return tf.nest.map_structure(_as_sent, result)


def received(sent: object) -> Structure:
    """The result of which `without_tensors` has made `sent`."""
    return tf.nest.map_structure(_as_received, sent)


@dataclasses.dataclass
class _Sent:
    """A tensor on its way."""

    value: np.ndarray


def _as_sent(leaf: Structure) -> Any:
    return _Sent(leaf.numpy()) if isinstance(leaf, tf.Tensor) else leaf


def _as_received(leaf: Structure) -> Any:
    return tf.constant(leaf.value) if isinstance(leaf, _Sent) else leaf


def _bytes_of(carry: Carry, data: np.ndarray, is_root: bool) -> np.ndarray:
    """The uint8 vector `data` of the root; others pass one of the same length."""
    received = np.zeros(data.size, np.uint8)
    for start in range(0, data.size, PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        words = np.zeros(-(-piece.size // 4), np.int32)
        if is_root:
            words.view(np.uint8)[: piece.size] = piece
        arrived = carry(tf.constant(words)).numpy().view(np.uint8)[: piece.size]
        received[start : start + piece.size] = arrived
    return received
