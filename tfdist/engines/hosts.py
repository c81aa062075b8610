"""Replicas that are grouped by host: they sum inside the host first, then the hosts sum."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.engines.contract import Engine, Value


class Hosts(abc.ABC):
    """The replicas of an engine by host, with equally many replicas on each host.

    Between R replicas on H hosts a ring sends 2(R - 1)/R times the vector over the busiest link. In
    groups it is 2(H - 1)/H times, as if each host had one replica only.

    Args:
        flat: carries tensors between all replicas, without groups.
        between: carries tensors between the hosts. All replicas of a host hand in the same values,
            and get the same results.
        host_id: the number of this host among the hosts.
        replicas: the number of replicas of each host.

    Attributes:
        between: as above.
        host_id: as above.
        replicas: as above.
        smallest: in bytes; fewer are summed without groups, which takes fewer messages.
    """

    smallest = 16 * 1024

    def __init__(self, flat: Engine, between: Engine, host_id: int, replicas: int):
        self._flat = flat
        self.between = between
        self.host_id = host_id
        self.replicas = replicas

    @abc.abstractmethod
    def sum_within(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas of this host, on each of them; in replica context."""

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over all replicas, in replica context; its gradient is the gradients' sum."""

        @tf.custom_gradient
        def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return self._sum(value), self.sum

        return summed(tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return self.between.all_reduce([self.sum_within(tensor)])[0]

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """As `Engine.all_reduce`, but dense tensors are summed inside the hosts first.

        Half precision is summed without groups, as it would be rounded once more by them.
        """
        sums: dict[int, Value] = {}
        for place, value in enumerate(values):
            if self._has_groups(value):
                sums[place] = self.sum(tf.convert_to_tensor(value))
        others = [place for place in range(len(values)) if place not in sums]
        if others:
            sums.update(zip(others, self._flat.all_reduce([values[place] for place in others])))
        return [sums[place] for place in range(len(values))]

    def _has_groups(self, value: Value) -> bool:
        if isinstance(value, tf.IndexedSlices) or value.dtype == tf.float16:
            return False
        if not value.shape.is_fully_defined():
            return False
        return value.shape.num_elements() * value.dtype.size >= self.smallest


def in_groups(exchange: str, replicas_of_hosts: Sequence[int], by_default: bool) -> bool:
    """Whether replicas sum inside their hosts first.

    Args:
        exchange: the option: "auto", "ring" or "hierarchical".
        replicas_of_hosts: the number of replicas of each host.
        by_default: whether "auto" means groups, where they save something.

    Raises:
        ValueError: if "hierarchical" is asked for, and some hosts have more replicas than others.
    """
    if exchange == "ring" or len(replicas_of_hosts) == 1 or max(replicas_of_hosts) == 1:
        return False
    if min(replicas_of_hosts) < max(replicas_of_hosts):
        if exchange == "hierarchical":
            raise ValueError(
                "`exchange='hierarchical'` needs equally many replicas on all hosts. Start as many "
                "on each, or use exchange='ring'. "
                f"Received: replicas of the hosts: {list(replicas_of_hosts)}"
            )
        return False
    return exchange == "hierarchical" or by_default
