"""TensorFlow's collective operations in groups that change."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.cluster.addresses import without_proxy
from tfdist.elastic.formation import Formation
from tfdist.elastic.group import Group
from tfdist.elastic.processes import GroupProcesses
from tfdist.engines.contract import Value
from tfdist.strategies.multi_worker.numbered_engine import NumberedEngine, Numbers
from tfdist.strategies.multi_worker.reducers.engine import sums_with_reducers
from tfdist.strategies.multi_worker.reducers.exchanges import Exchanges

# What the errors of operations contain when a process is gone.
ABORTED = "tfdist: the group is no more"
_SIGNS_OF_LOSS = (
    ABORTED,
    "Collective ops is aborted",
    "Collective has timed out",
    "GRPC error",
    "Socket closed",
    "failed to connect",
    "Connection reset",
    "Connection refused",
)


def is_sign_of_loss(error: Exception) -> bool:
    """Whether an operation was aborted, or a connection broke.

    Where several operations are under way, such as sums by reducers, TensorFlow may tell of one
    that it has cancelled because another one failed.
    """
    return isinstance(error, tf.errors.OpError) and (
        isinstance(error, tf.errors.CancelledError)
        or any(sign in error.message for sign in _SIGNS_OF_LOSS)
    )


class CollectivesConnection:
    """Connects the ranks of an elastic job over gRPC.

    Args:
        address: where this process listens.

    Attributes:
        address: as above.
        first_reducers: how many reducers there were when the job began.
        exchanges: with those that there are now; None without reducers.
    """

    def __init__(self, address: str):
        self.address = address
        self.first_reducers = 0
        self.exchanges: Exchanges | None = None
        self._numbers = Numbers(0)

    def form(self, formation: Formation, own: int) -> None:
        """Connects this process to the members of a group."""
        everyone = [*formation.addresses, *formation.reducer_addresses]
        os.environ.update(without_proxy(os.environ, everyone))
        compat.form_group(formation.places, own, formation.reducer_places)
        self._numbers.begin(formation.generation, len(formation.members))
        self.first_reducers, self.exchanges = formation.first_reducers, None
        if formation.reducers:
            rank, reducers = formation.rank_of(own), len(formation.reducers)
            self.exchanges = Exchanges(rank, reducers, formation.generation)

    def leave(self) -> None:
        """Aborts what may still run."""
        self.interrupt()

    def interrupt(self) -> None:
        """Aborts operations that wait for other ranks."""
        compat.abort_group(ABORTED)

    def is_loss(self, error: Exception) -> bool:
        """Whether an operation was aborted, or a connection broke."""
        return is_sign_of_loss(error)

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks."""
        return self._numbers.sum(value)


class GroupEngine(NumberedEngine):
    """The engine of one strategy, whose ranks are a group that changes.

    Args:
        group: the group.
        connection: connects the processes.
        largest_message: as in `Engine`.
        may_use_reducers: whether reducers can sum what the strategy exchanges.

    Attributes:
        exchanges: with the reducers that there are now; None without reducers.
    """

    def __init__(
        self,
        group: Group,
        connection: CollectivesConnection,
        largest_message: int,
        may_use_reducers: bool,
    ):
        super().__init__(GroupProcesses(group, connection.sum), Numbers(), largest_message)
        self._group, self._connection = group, connection
        self._may_use_reducers = may_use_reducers
        self._begin()
        group.on_change(self._begin)

    def _begin(self) -> None:
        self._numbers.begin(self._group.generation, self._group.size)
        self.exchanges = self._connection.exchanges if self._may_use_reducers else None

    @tf.autograph.experimental.do_not_convert
    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums: of long dense vectors by the reducers, if there are any."""
        if self.exchanges is None:
            return super().all_reduce(values)
        return sums_with_reducers(self.exchanges, values, super().all_reduce)
