"""What a replica keeps, and what it computes in a step, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step.sharding.parts import Parts
from tfdist.step.sharding.weights import is_large, may_be_divided

Moments = tuple[tuple[int, int], ...]
"""At some moments of the passes: the bytes of all tensors but the gradients, and of gradients."""


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that is trained, or a frozen one, which has no gradient.

    Attributes:
        path: the weight's path, which begins with that of its layer.
        shape: the weight's shape.
        dtype: the name of its dtype.
        gradient: the bytes of its gradient; of a sparse one, of its rows; 0 if it has none.
        is_sparse: whether its gradient has rows.
        is_divided: whether replicas may keep parts of it.
        is_regularized: whether its values are part of the loss.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    gradient: int
    is_sparse: bool = False
    is_divided: bool = False
    is_regularized: bool = False

    @property
    def layer(self) -> str:
        """The path of its layer."""
        return self.path.rpartition("/")[0]

    @property
    def nbytes(self) -> int:
        """The bytes of the whole weight."""
        return _nbytes(self.shape, self.dtype)

    def part(self, replicas: int) -> int:
        """The bytes of the part that each of so many replicas keeps."""
        parts = Parts.of(tf.TensorSpec(self.shape, self.dtype), replicas)
        return parts.length * parts.dtype.size


@dataclasses.dataclass(frozen=True)
class Passes:
    """The forward and the backward pass of one replica.

    Attributes:
        weights: the trained ones, in the order of the model.
        moments: those at which most bytes exist; none if the passes were not traced.
        unknown: how many tensors have sizes that depend on the data. They count nothing.
    """

    weights: tuple[Weight, ...]
    moments: Moments = ()
    unknown: int = 0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """All that the memory of a step follows from.

    Attributes:
        passes: of one replica.
        others: the bytes of the variables that are not trained, whole.
        slots: the bytes that the optimizer keeps, whole.
        updates_whole: whether the optimizer looks at whole variables.
        is_eager: whether steps run eagerly.
        frozen: those of the others of which replicas may keep parts.
        slots_in_parts: the bytes that the optimizer keeps for the parts of one replica; None for
            `slots` divided by the number of replicas, which leaves out what fills up parts.
    """

    passes: Passes
    others: int
    slots: int
    updates_whole: bool = False
    is_eager: bool = False
    frozen: tuple[Weight, ...] = ()
    slots_in_parts: int | None = None

    @property
    def weights(self) -> Sequence[Weight]:
        """The trained weights."""
        return self.passes.weights

    @property
    def parameters(self) -> int:
        """The bytes of all variables of the model, whole."""
        return self.others + sum(weight.nbytes for weight in self.weights)

    @property
    def gradients(self) -> int:
        """The bytes of all gradients of a step."""
        return sum(weight.gradient for weight in self.weights)

    def dense(self) -> Sizes:
        """The same with a whole gradient of each weight, as where gradients are accumulated."""
        weights = tuple(
            dataclasses.replace(weight, gradient=weight.nbytes, is_sparse=False)
            for weight in self.weights
        )
        return dataclasses.replace(self, passes=dataclasses.replace(self.passes, weights=weights))

    def activations(self, sums: float = 0.0, part: float = 1.0) -> int:
        """The most bytes beside the gradients and their sums.

        In the passes, or in the update, in which TensorFlow computes a new tensor for each variable
        before it adds them to the variables.

        Args:
            sums: the bytes of the sums over the replicas, as a part of those of the gradients. Less
                than 0 where only parts of the gradients stay.
            part: the part of the variables that a replica updates.
        """
        if not self.passes.moments:
            return 0
        kept = 1.0 + sums
        most = max(others + kept * gradients for others, gradients in self.passes.moments)
        return max(0, round(most - kept * self.gradients), round(part * self.gradients))


def weight_of(variable: keras.Variable, gradient: int, is_sparse: bool = False) -> Weight:
    """What there is to know of a trained variable; the others are attributes of `Weight`."""
    return Weight(
        variable.path,
        tuple(variable.shape),
        tf.as_dtype(variable.dtype).name,
        gradient,
        is_sparse,
        may_be_divided(variable),
        variable.regularizer is not None,
    )


def frozen_of(model: keras.Model) -> tuple[Weight, ...]:
    """The variables that a model does not train, and of which replicas may keep parts.

    They are weights that were made to be trained, and are frozen.
    """
    made_so = {
        id(variable)
        for layer in compat.flatten_layers(model)
        for variable in compat.own_non_trainable_variables(layer)
    }
    return tuple(
        Weight(v.path, tuple(v.shape), tf.as_dtype(v.dtype).name, 0, is_divided=True)
        for v in model.non_trainable_variables
        if compat.is_sharded(v) or (is_large(v) and id(v) not in made_so)
    )


def nbytes(variable: keras.Variable) -> int:
    """The bytes of a variable, whole."""
    return _nbytes(variable.shape, variable.dtype)


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * tf.as_dtype(dtype).size
