"""What every engine can do: the contract between the engines and the code that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import tensorflow as tf

from tfdist.engines.processes import Processes

if TYPE_CHECKING:
    from tfdist.engines.hosts import Hosts
    from tfdist.engines.pairs import Pairs

Value: TypeAlias = "tf.Tensor | tf.IndexedSlices"


class Engine(Protocol):
    """Carries tensors between the replicas of a job.

    The operations are collective: every replica calls them, in the same order, in replica context,
    with tensors of the same dtype. Dtypes are float16, float32, float64, int32 and int64. Shapes
    are static and equal on all replicas; only `all_gather` takes any first dimension. With one
    replica each operation returns what this replica has.

    Code above an engine never asks which engine it is.

    Attributes:
        processes: the processes that the replicas run in; they also talk outside of steps.
        largest_message: in bytes. Longer vectors travel faster in pieces of this size. None for no
            bound.
        hosts: the replicas by host, if they sum inside their hosts first; None for one group of
            all replicas.
        pairs: carries tensors between two processes at a time; None where it cannot.
        runs_beside_steps: whether a function with operations may run in another thread while steps
            run, with operations of their own. It begins at other times on other ranks.
    """

    processes: Processes
    largest_message: int | None
    hosts: Hosts | None = None
    pairs: Pairs | None = None
    runs_beside_steps: bool = False

    @property
    def replicas(self) -> int:
        """The number of replicas."""

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sum of each of `values` over the replicas, with one operation per value.

        Args:
            values: tensors, and `tf.IndexedSlices`, whose rows are concatenated instead of summed.
        """

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all replicas, joined along the first dimension."""

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
            vector: of `replicas * k` elements. Part r is the k elements from `r * k` on.

        Returns:
            A vector of k elements.
        """

    def all_gather_parts(self, part: tf.Tensor, in_turn: bool = False) -> tf.Tensor:
        """The parts of all replicas, one after the other: the way back from `reduce_scatter`.

        Args:
            part: a vector of k elements, equally many on every replica.
            in_turn: whether the replicas of a process may be traced one after the other. Then a
                layer that keeps something in Python while it is called sees one replica only. The
                caller answers for no condition being around the operation.

        Returns:
            A vector of `replicas * k` elements.
        """
        return tf.ensure_shape(self.all_gather(part), [self.replicas * part.shape[0]])
