"""The replicas of each process, and sums between the processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Engine, Value
from tfdist.engines.halves import sum_of_rows, with_sums_of_halves
from tfdist.engines.hosts import Hosts, in_groups
from tfdist.engines.replica_context import static_id
from tfdist.engines.words import from_words, to_words


class ProcessesAsHosts(Hosts):
    """Groups the replicas of a strategy by process: each process has a host of its own."""

    def sum_within(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas of this process, added up on its first device."""
        return _once(lambda _, values: tf.add_n(values), tensor)


def hosts_of(
    strategy: tf.distribute.MultiWorkerMirroredStrategy, flat: Engine, exchange: str
) -> Hosts | None:
    """The replicas by process; None if they sum in one group.

    Args:
        strategy: the strategy.
        flat: its engine.
        exchange: the option.
    """
    replicas = len(strategy.extended.worker_devices)
    # Between hosts the values travel from CPU to CPU. NCCL has a way of its own between GPUs.
    by_default = are_cpus(strategy)
    if not in_groups(exchange, [replicas] * flat.processes.size, by_default):
        return None
    return ProcessesAsHosts(flat, BetweenProcesses(flat), flat.processes.rank, replicas)


def are_cpus(strategy: tf.distribute.Strategy) -> bool:
    """Whether all replicas of this process run on CPUs."""
    devices = strategy.extended.worker_devices
    return all(tf.DeviceSpec.from_string(d).device_type == "CPU" for d in devices)


class BetweenProcesses(Engine):
    """Carries one value per process.

    All replicas of a process hand in the same value, and get the same result.

    Args:
        flat: the engine of all replicas.
    """

    def __init__(self, flat: Engine):
        self.processes = flat.processes
        self.largest_message = flat.largest_message

    @property
    def replicas(self) -> int:
        """The number of processes."""
        return self.processes.size

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums, with one operation per tensor; of half precision, in float32."""
        return with_sums_of_halves(self, values, self._sums)

    def _sums(self, values: Sequence[Value]) -> list[Value]:
        return [_of_first(compat.sum_between_workers, value) for value in values]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all processes, which have equal shapes."""
        gathered = _of_first(compat.gather_between_workers, tensor)
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of process `root`: its bits as integers, summed with zeros."""
        words = to_words(tensor)
        own = words if self.processes.rank == root else tf.zeros_like(words)
        return from_words(self.all_reduce([own])[0], tensor)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this process."""
        return tf.ensure_shape(_of_first(compat.all_to_all_between_workers, rows), rows.shape)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This process' part of the sum. Half precision is summed in float32."""
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))


_Operation = Callable[[tf.distribute.Strategy, list[tf.Tensor]], tf.Tensor]


def _of_first(
    operation: Callable[[tf.distribute.Strategy, tf.Tensor], tf.Tensor], value: tf.Tensor
) -> tf.Tensor:
    """What `operation` makes of the first replica's value, for all replicas of this process."""
    return _once(lambda strategy, values: operation(strategy, values[0]), value)


def _once(operation: _Operation, value: tf.Tensor) -> tf.Tensor:
    """What `operation` makes of all local replicas' values; run once, on the first device."""

    @tf.autograph.experimental.do_not_convert
    def run(strategy: tf.distribute.Strategy, value: tf.Tensor) -> list[tf.Tensor]:
        devices = strategy.extended.worker_devices
        with tf.device(devices[0]):
            result = operation(strategy, list(strategy.experimental_local_results(value)))
        copies = []
        for device in devices:
            with tf.device(device):
                copies.append(tf.identity(result))
        return copies

    context = tf.distribute.get_replica_context()
    # Without a copy, TensorFlow takes the same object of all replicas for one value.
    copies = context.merge_call(run, args=(tf.identity(value),))
    return copies[static_id() % len(copies)]
