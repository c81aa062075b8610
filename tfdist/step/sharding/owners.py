"""Whole variables, each of which belongs to one replica: who owns which, and in which state.

For optimizers that look at a whole variable, such as Lamb, Adafactor and Muon. The owner of a
variable has the optimizer's state for it, and updates it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat


@dataclasses.dataclass(frozen=True)
class Owned:
    """A variable, or a variable of an optimizer, that one replica has whole.

    Attributes:
        shape: of the variable.
        dtype: of the variable.
        owner: the replica.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    owner: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of what the owner has."""
        return self.shape

    @property
    def holders(self) -> Sequence[int]:
        """The replicas that have something of the variable."""
        return (self.owner,)

    def part_of_array(self, whole: np.ndarray, replica: int) -> np.ndarray:
        """What the owner has of a whole array."""
        del replica
        return np.asarray(whole)

    def array_of_parts(self, parts: list[np.ndarray]) -> np.ndarray:
        """The whole array."""
        (whole,) = parts
        return whole


def owners_of(sizes: Sequence[int], replicas: int) -> list[int]:
    """An owner for each of some variables, so that replicas own about as many bytes.

    The largest variables come first, and each goes to the replica that owns least so far.

    Args:
        sizes: of the variables, in bytes. Whoever has the same sizes finds the same owners.
        replicas: the number of replicas.

    Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (SIAM J. Appl. Math. 17, 1969): the
    largest load is at most 4/3 of the smallest possible one.
    """
    loads = [0] * replicas
    owners = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        owners[place] = min(range(replicas), key=lambda replica: (loads[replica], replica))
        loads[owners[place]] += sizes[place]
    return owners


def largest_share(sizes: Sequence[int], replicas: int) -> float:
    """Which part of all bytes the replica owns that owns most."""
    loads = [0] * replicas
    for size, owner in zip(sizes, owners_of(sizes, replicas)):
        loads[owner] += size
    return max(loads) / max(1, sum(loads))


def used_by_update(
    optimizer: keras.optimizers.Optimizer,
    variable: keras.Variable,
    state: Sequence[keras.Variable],
) -> list[keras.Variable]:
    """Which of an optimizer's variables an update of one weight uses; nothing is updated.

    Args:
        optimizer: it is built.
        variable: the weight.
        state: the variables of the optimizer that are asked for.
    """

    @tf.function(autograph=False)
    def update() -> None:
        gradient = tf.zeros(variable.shape, variable.dtype)
        with compat.updating_own_copy(0):
            optimizer.update_step(gradient, variable, tf.zeros([]))

    used = {id(tensor) for tensor in update.get_concrete_function().captured_inputs}
    strategy = tf.distribute.get_strategy()
    return [
        one
        for one in state
        if any(id(c.handle) in used for c in strategy.experimental_local_results(one.value))
    ]


def keep_of_owner(variable: keras.Variable, owner: int) -> None:
    """Frees the memory of the copies that other replicas than the owner have of a variable.

    Nobody reads or sets them. They are empty, though the variable has its shape.
    """
    strategy = tf.distribute.get_strategy()
    copies = strategy.experimental_local_results(variable.value)
    first = strategy.processes.rank * len(copies)
    for replica, copy in enumerate(copies, start=first):
        if replica != owner and len(variable.shape):
            with tf.device(copy.device):
                nothing = tf.zeros([0, *variable.shape[1:]], copy.dtype)
                # The methods of the variable would compare shapes.
                tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)
