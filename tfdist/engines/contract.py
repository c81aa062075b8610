"""What every engine can do: the contract between those that carry tensors and those that decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tfdist.engines.processes import Processes

Value: TypeAlias = "tf.Tensor | tf.IndexedSlices"


class Engine(Protocol):
    """Carries tensors between the replicas of a job.

    The operations are collective: every replica calls them, in the same order, in replica context,
    with tensors of the same dtype. Dtypes are float16, float32, float64, int32 and int64. Shapes
    are static and equal on all replicas, but for the first dimension of what `all_gather` takes.
    With one replica each operation returns what one replica has.

    Nothing above an engine asks which one it is.

    Attributes:
        processes: the processes that the replicas run in; they also meet outside of steps.
        largest_message: vectors of more bytes are faster in pieces of so many; None for no bound.
    """

    processes: Processes
    largest_message: int | None

    @property
    def replicas(self) -> int:
        """The number of replicas."""

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sum over the replicas of each of `values`, an operation for each.

        Args:
            values: tensors, and `tf.IndexedSlices`, whose rows are concatenated instead of summed.
        """

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The replicas' tensors one after the other, along the first dimension."""

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of replica `root`, bit by bit."""

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """Gives row j to replica j.

        Args:
            rows: of shape `[replicas, ...]`.

        Returns:
            A tensor of the same shape; row i is what replica i gave to this one.
        """

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This replica's part of the sum over the replicas.

        Args:
            vector: of `replicas * k` elements; part r are the k elements from `r * k` on.

        Returns:
            A vector of k elements.
        """
