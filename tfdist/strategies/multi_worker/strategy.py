"""Replicas in several processes that meet in TensorFlow's collective operations."""

from __future__ import annotations

import itertools
import re

import tensorflow as tf
from typing_extensions import Unpack

from tfdist import compat, testing
from tfdist.arguments import check_bool, check_instance
from tfdist.cluster import Cluster
from tfdist.elastic import membership
from tfdist.engines.processes import OneProcess, Processes
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.multi_process import MultiProcessStrategy
from tfdist.strategies.multi_worker.engine import CollectivesEngine
from tfdist.strategies.multi_worker.hosts import are_cpus, hosts_of
from tfdist.strategies.multi_worker.joining import (
    cluster_of,
    cluster_of_process,
    join,
    rank_of,
)
from tfdist.strategies.multi_worker.pairs import PairsOfWorkers
from tfdist.strategies.multi_worker.reducers.engine import ReducersEngine
from tfdist.strategies.multi_worker.reducers.joining import check_devices, joined_reducers
from tfdist.validation import check_resolver, check_seconds


class MultiWorkerMirroredStrategy(MultiProcessStrategy, tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous training on the devices of several processes, on one machine or several.

    A drop-in for `tf.distribute.MultiWorkerMirroredStrategy`. Keras 3's `fit`, `evaluate` and
    `predict` run, with the results of one device. The processes find each other by the environment
    variable TF_CONFIG, which `tfdist run` and cluster managers set, or by Slurm's variables.
    Without these variables, this process is the only one.

    Make the strategy before TensorFlow runs anything.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`; None for the
            environment variables.
        communication_options: a `tf.distribute.experimental.CommunicationOptions`, for example to
            choose between NCCL and ring. Its `bytes_per_pack` is not used.
        heartbeat_timeout: seconds, 1 to 1,000,000. A worker that gives no sign of life for this
            long counts as lost, and training ends with an error that names the worker.
        log_all_ranks: whether all workers show progress, not only the chief.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for an invalid TF_CONFIG, and options out of range.
        TimeoutError: when peers cannot be reached within 60 seconds, or within the seconds in the
            environment variable TFDIST_CONNECT_TIMEOUT. Names the ranks and addresses.
        OSError: when the port of this worker is in use.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MultiWorkerMirroredStrategy()  # this process alone
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="adam", loss="mse")
    >>> x, y = np.ones((32, 4)), np.ones((32, 1))
    >>> history = model.fit(x, y, epochs=1, verbose=0, callbacks=strategy.callbacks())
    """

    def __new__(cls, *args: object, **kwargs: object) -> MultiWorkerMirroredStrategy:
        """In a rank of an elastic job (`tfdist run --min`), the strategy is an elastic one."""
        if cls is MultiWorkerMirroredStrategy and membership.is_elastic():
            from tfdist.strategies.multi_worker.elastic import ElasticMultiWorkerStrategy

            cls = ElasticMultiWorkerStrategy
        return super().__new__(cls)

    @takes_options
    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        heartbeat_timeout: float = 10.0,
        log_all_ranks: bool = False,
        **options: Unpack[CommonOptions],
    ):
        common = Options(**options)  # type: ignore[arg-type]
        check_seconds("heartbeat_timeout", heartbeat_timeout, minimum=1)
        check_bool("log_all_ranks", log_all_ranks)
        if communication_options is not None:
            check_instance(
                "communication_options",
                communication_options,
                # This name is a function that makes objects of a private class.
                type(tf.distribute.experimental.CommunicationOptions()),
                "tf.distribute.experimental.CommunicationOptions",
            )
        check_resolver(cluster_resolver)
        testing.virtual_devices_of_environment()
        cluster = cluster_of_process() if cluster_resolver is None else cluster_of(cluster_resolver)
        reducers = joined_reducers(cluster, common)
        if cluster is not None and cluster.size > 1:
            join(cluster)
        compat.install_collectives()
        compat.separate_collectives(self)
        extended = compat.MultiWorkerExtended(
            self,
            _resolver(cluster) if reducers or cluster_resolver is None else cluster_resolver,
            communication_options or tf.distribute.experimental.CommunicationOptions(),
            heartbeat_timeout,
        )
        tf.distribute.Strategy.__init__(self, extended)
        check_devices(self, reducers)
        processes = OneProcess() if cluster is None else _Workers(self, cluster)
        # TensorFlow's ring is slow with tensors of many megabytes.
        on_cpus = are_cpus(self)
        few_rounds = common.exchange != "ring"
        engine = CollectivesEngine(processes, common.bucket_bytes, on_cpus, few_rounds)
        if reducers:
            engine = ReducersEngine(processes, common.bucket_bytes, few_rounds, reducers)
        engine.hosts = hosts_of(self, engine, common.exchange)
        engine.pairs = PairsOfWorkers(processes)
        self._init_processes(common, engine, log_all_ranks)


# What TensorFlow's errors contain when a worker is gone.
_SIGNS_OF_LOSS = (
    "Collective ops is aborted",
    "Collective has timed out",
    "GRPC error",
    "heartbeats",
    "Socket closed",
)
_LATE = (
    " If no rank has ended, a link was too slow or too full for a heartbeat: give the strategy a "
    "larger `heartbeat_timeout`."
)


class _Workers(Processes):
    """The workers of a cluster."""

    def __init__(self, strategy: MultiWorkerMirroredStrategy, cluster: Cluster):
        super().__init__(rank_of(cluster), cluster.size)
        self._strategy = strategy
        self._addresses = cluster.workers
        self._reducers = cluster.jobs.get("reducer", ())
        self._chiefs = len(cluster.jobs.get("chief", ()))
        self._aside = _Aside(self, _FIRST_KEY_ASIDE + len(_places))
        _places.append(self)

    @property
    def aside(self) -> Processes:
        """The same workers, as a group of their own."""
        return self._aside

    @property
    def meeting_place(self) -> Processes:
        """The first strategy's workers: operations of different strategies never meet."""
        return _places[0]

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """The workers that TensorFlow names as unhealthy, or to which a connection broke."""
        if not any(sign in error.message for sign in _SIGNS_OF_LOSS):
            return None
        _, _, unhealthy = error.message.partition("stopped sending heartbeats")
        if self.rank and "CoordinationService" in error.message:
            return [0]  # rank 0 runs that service
        named = re.findall(r"/job:(\w+)/replica:\d+/task:(\d+)", unhealthy or error.message)
        return sorted({self._rank(job, int(task)) for job, task in named} - {self.rank})

    def advice(self, error: tf.errors.OpError) -> str:
        """To wait longer, where only a sign of life is missing."""
        return _LATE if "heartbeat" in error.message.lower() else ""

    def _rank(self, job: str, task: int) -> int:
        if job == "ps":  # what TensorFlow knows reducers as
            return self.size + task
        return task if job == "chief" else task + self._chiefs

    def name(self, rank: int) -> str:
        """The name of a worker in messages: its rank and address; reducers come after them."""
        if rank >= self.size:
            number = rank - self.size
            return f"reducer {number} ({self._reducers[number]})"
        return f"rank {rank} ({self._addresses[rank]})"


class _Aside(Processes):
    """The workers of a cluster, in a group that the strategy's operations do not use.

    Args:
        workers: the workers.
        group_key: the group's number; the same in all processes.
    """

    def __init__(self, workers: _Workers, group_key: int):
        super().__init__(workers.rank, workers.size)
        self._workers = workers
        self._group_key = group_key
        self._instance_keys = itertools.count()

    @property
    def aside(self) -> Processes:
        """This object: there is one such group for each strategy."""
        return self

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """As for the workers."""
        return self._workers.lost(error)

    def advice(self, error: tf.errors.OpError) -> str:
        """As for the workers."""
        return self._workers.advice(error)

    def name(self, rank: int) -> str:
        """As for the workers."""
        return self._workers.name(rank)

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveReduceV2(
                input=value,
                group_size=self.size,
                group_key=self._group_key,
                instance_key=next(self._instance_keys),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
            )


# Above the numbers that TensorFlow and tfdist.compat give to the groups of a process.
_FIRST_KEY_ASIDE = 2**30

_places: list[Processes] = []


def _resolver(cluster: Cluster | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    if cluster is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    jobs = compat.jobs_with_reducers(cluster.jobs)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
    )
