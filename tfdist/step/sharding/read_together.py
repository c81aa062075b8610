"""Weights in parts, read by several processes together, outside of steps."""

from __future__ import annotations

import json
import zlib

import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.engines.scopes import outside_of_scopes


def read(
    strategy: tf.distribute.Strategy, variable: compat.ShardedVariable, order: int
) -> np.ndarray:
    """The whole weight, the `order`-th that was made; called by all processes, not in functions.

    Raises:
        ValueError: if the processes read different weights.
    """
    processes, parts = strategy.processes, variable.parts
    place, doing = processes.meeting_place, f"reads {variable.path}"
    # As `tfdist.processes.meeting` does, whom another process may meet here.
    is_new = int(variable.read_alone is not None)
    header = [zlib.crc32(f"{order} {variable.shape}".encode()), is_new]
    asked = outside_of_scopes(place.all_gather, header)
    if len(set(asked[:, 0].tolist())) > 1:
        texts = outside_of_scopes(place.all_gather_texts, json.dumps([doing, "", {}]))
        raise ValueError(
            'With `sharding="parameters"` each process has parts of the weights. So all of them '
            "must read the same weights, in the same order, and not one of them alone. Received "
            f"by rank: {[json.loads(text)[0] for text in texts]}"
        )
    if asked[:, 1].any():
        return share(strategy, variable)
    copies = strategy.experimental_local_results(compat.stored(variable))
    nothing = np.broadcast_to(np.zeros((), parts.dtype.as_numpy_dtype), parts.part_shape)
    found = []
    for number in range(parts.replicas):
        root, place = divmod(number, len(copies))
        own = copies[place].numpy() if root == processes.rank else nothing
        found += processes.broadcast([own], root)
    return parts.array_of_parts(found)


def share(strategy: tf.distribute.Strategy, variable: compat.ShardedVariable) -> np.ndarray:
    """Gives all processes their parts of what the first one alone has read; called by all.

    Args:
        strategy: keeps the parts.
        variable: the weight that was read.

    Returns:
        The whole weight.
    """
    parts = variable.parts
    nothing = np.broadcast_to(np.zeros((), parts.dtype.as_numpy_dtype), parts.shape)
    own = nothing if variable.read_alone is None else variable.read_alone()
    (whole,) = strategy.processes.broadcast([own], 0)
    variable.keeper.assign(variable, tf.constant(whole))
    return whole
