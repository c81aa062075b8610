"""The ranks of each host, and sums between the hosts, over Horovod's all-to-all exchange.

Horovod's process sets would do as well. But over Gloo they connect by the host's name instead of
the interface that the job was told to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import tensorflow as tf

from tfdist.engines.contract import Engine, Value
from tfdist.engines.halves import sum_of_rows
from tfdist.engines.hosts import Hosts, in_groups
from tfdist.engines.words import from_words, to_words
from tfdist.strategies.horovod.engine import HorovodEngine


class LocalRanks(Hosts):
    """Groups ranks by host. Rank l of a host exchanges part l with rank l of the other hosts.

    Args:
        engine: carries tensors between all ranks.
        within: the ranks of this host.
        across: the ranks that have this rank's place on their hosts, in the order of the hosts.
    """

    def __init__(self, engine: HorovodEngine, within: SomeRanks, across: SomeRanks):
        between = BetweenHosts(engine, within, across)
        super().__init__(engine, between, across.place, within.size)
        self._within, self._across = within, across

    def sum_within(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of this host: each rank sums one part."""
        parts = self._within.padded(tensor)
        return _shaped(self._within.all_gather(self._within.reduce_scatter(parts)), tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over all ranks: each rank sums one part, also between the hosts."""
        part = self._within.reduce_scatter(self._within.padded(tensor))
        return _shaped(self._within.all_gather(self._across.all_reduce(part)), tensor)


def hosts_of(hvd: ModuleType, engine: HorovodEngine, exchange: str) -> Hosts | None:
    """The ranks by host; None if they sum in one group.

    Args:
        hvd: the module `horovod.tensorflow`, initialized.
        engine: the engine of all ranks.
        exchange: the option.
    """
    if engine.replicas == 1:
        return None
    places = np.zeros([engine.replicas, 3], np.int32)
    places[hvd.rank()] = [hvd.cross_rank(), hvd.local_rank(), hvd.local_size()]
    places = engine.processes.sum(tf.constant(places)).numpy()
    # Those with local rank 0 are as many as there are hosts.
    sizes = [int(size) for _, local_rank, size in places if local_rank == 0]
    # Groups take longer than Horovod's ring, but on slow links (benchmarks/hierarchy.py).
    if not in_groups(exchange, sizes, by_default=False):
        return None
    own_host, own_place, _ = places[hvd.rank()]
    ranks = range(engine.replicas)
    within = sorted((r for r in ranks if places[r, 0] == own_host), key=lambda r: places[r, 1])
    across = sorted((r for r in ranks if places[r, 1] == own_place), key=lambda r: places[r, 0])
    return LocalRanks(engine, SomeRanks(engine, within), SomeRanks(engine, across))


class SomeRanks:
    """Operations between some of the ranks, while the other ranks run them in groups of their own.

    They are all-to-all exchanges between all ranks, in which only those of a group get something.

    Args:
        engine: carries tensors between all ranks.
        ranks: those of the group of this rank, in the order of their parts.

    Attributes:
        size: the number of ranks in the group.
        place: the place of this rank in the group.
    """

    def __init__(self, engine: HorovodEngine, ranks: Sequence[int]):
        self._engine = engine
        self._is_member = np.isin(np.arange(engine.replicas), ranks).astype(np.int32)
        # What arrives is in the order of the ranks.
        self._order = np.argsort(ranks)
        self.size = len(ranks)
        self.place = list(ranks).index(engine.processes.rank)

    def padded(self, tensor: tf.Tensor) -> tf.Tensor:
        """The elements of `tensor` in `[size, k]`, filled up with zeros."""
        flat = tf.reshape(tensor, [-1])
        return tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % self.size]]), [self.size, -1])

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """Gives row j, of `[size, k]`, to the group's rank j; row i is what rank i has given."""
        length = tf.shape(rows)[1]
        by_rank = tf.gather(rows, self._order)
        received = self._engine.all_to_some(tf.reshape(by_rank, [-1]), length * self._is_member)
        back = np.argsort(self._order)
        return tf.gather(tf.reshape(received, [self.size, length]), back)

    def reduce_scatter(self, rows: tf.Tensor) -> tf.Tensor:
        """This rank's row of the sum of all ranks' rows, `[size, k]`."""
        return sum_of_rows(self.all_to_all(rows))

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all ranks of the group, of equally many elements, as rows."""
        return self.all_to_all(tf.tile(tf.reshape(tensor, [1, -1]), [self.size, 1]))

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of the group."""
        return _shaped(self.all_gather(self.reduce_scatter(self.padded(tensor))), tensor)


class BetweenHosts(Engine):
    """Carries one value per host.

    All ranks of a host hand in the same value, and get the same result. Each carries one part.

    Args:
        engine: carries tensors between all ranks.
        within: the ranks of this host.
        across: the ranks that have this rank's place on their hosts.
    """

    largest_message = None

    def __init__(self, engine: HorovodEngine, within: SomeRanks, across: SomeRanks):
        self.processes = engine.processes
        self._within, self._across = within, across

    @property
    def replicas(self) -> int:
        """The number of hosts."""
        return self._across.size

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums over the hosts, added up in one place each; half precision in float32."""
        return [self._sum(tf.convert_to_tensor(value)) for value in values]

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return _shaped(self._in_parts(self._across.all_reduce, tf.reshape(tensor, [1, -1])), tensor)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all hosts, which have equal shapes."""
        rows = self._in_parts(self._across.all_gather, tf.reshape(tensor, [1, -1]))
        joined = tf.reshape(rows, [-1, *tensor.shape[1:]])
        return tf.ensure_shape(joined, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of host `root`: its bits as integers, summed with zeros."""
        words = to_words(tensor)
        own = words if self._across.place == root else tf.zeros_like(words)
        return from_words(self._sum(own), tensor)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this host."""
        flat = tf.reshape(rows, [self.replicas, -1])
        return _shaped(self._in_parts(self._across.all_to_all, flat), rows)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This host's part of the sum. Half precision is summed in float32."""
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))

    def _in_parts(self, carry: Callable[[tf.Tensor], tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        """What `carry` makes of `rows`, if each rank of a host carries one part of every row.

        Args:
            carry: an operation between hosts. It gets `[n, k]` and returns `[m, k]`.
            rows: of `[n, length]`.

        Returns:
            Rows of `[m, length]`.
        """
        number, length = tf.shape(rows)[0], tf.shape(rows)[1]
        padded = tf.pad(rows, [[0, 0], [0, -length % self._within.size]])
        parts = tf.reshape(padded, [number, self._within.size, -1])
        own = carry(parts[:, self._within.place])
        carried = tf.reshape(
            self._within.all_gather(tf.reshape(own, [-1])),
            [self._within.size, tf.shape(own)[0], -1],
        )
        joined = tf.reshape(tf.transpose(carried, [1, 0, 2]), [tf.shape(own)[0], -1])
        return joined[:, :length]


def _shaped(padded: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The first elements of `padded`, in the shape of `like`."""
    flat = tf.reshape(padded, [-1])[: tf.size(like)]
    return tf.ensure_shape(tf.reshape(flat, tf.shape(like)), like.shape)
