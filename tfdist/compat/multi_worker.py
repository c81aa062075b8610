"""TensorFlow's strategy for several workers, extended for tfdist."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from tfdist.compat.creation import BeforeCreating, create_alone
from tfdist.compat.registry import READ, TENSORFLOW, WRITTEN, overrides, touch
from tfdist.structures import Structure
from tfdist.validation import check_exchangeable

CHUNK_BYTES = 64 * 1024
"""TensorFlow copies what it sends into strings of this many bytes. Its default of 4096 costs one
allocation per page. Above 128 KiB each string is mapped into memory anew."""

# With fewer operations a link of 1 Gbit/s is idle at times (benchmarks/side_by_side, 1 Gbit/s).
OPERATIONS_UNDER_WAY = 8

_EXTENDED = (
    "tensorflow.python.distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended"
)
_LAUNCHER = "tensorflow.python.distribute.cross_device_utils:CollectiveReplicaLauncher"
_SERVER = touch(
    *(_EXTENDED, "_std_server_started", WRITTEN),
    why="TensorFlow would start a server for each strategy, but the strategies of a process share "
    "one server",
    versions=TENSORFLOW,
    instead="one server per process",
)
_WORKERS = touch(
    *(_EXTENDED, "_num_workers", READ),
    why="tells whether there is only a single worker, which exchanges nothing",
    versions=TENSORFLOW,
    instead="a public property",
)
_SEVERAL: dict[str, str] = {
    "why": "TensorFlow runs only one collective operation of a replica at a time, because NCCL "
    "needs this. Over gRPC the link would then be idle whenever the operation adds or waits for "
    "the other worker",
    "versions": TENSORFLOW,
    "instead": "a constructor argument",
}
_OPS = touch(_EXTENDED, "_cross_device_ops", READ, **_SEVERAL)
_HOST_OPS = touch(
    *(_EXTENDED, "_host_cross_device_ops", READ),
    why="carries values of which each worker has one, between the workers only",
    versions=TENSORFLOW,
    instead="a public way to reduce one value per worker inside of a `tf.function`",
)
_LAUNCHERS = touch(
    "tensorflow.python.distribute.cross_device_ops:CollectiveAllReduce",
    *("_launchers", READ),
    **_SEVERAL,
)
_DEVICE = touch(_LAUNCHER, "_device", READ, **_SEVERAL)
_TOKEN = touch(_LAUNCHER, "_ordering_token", WRITTEN, **_SEVERAL)


@overrides(
    *("_initialize_local_devices", "_create_variable", "_get_variable_creator_initial_value"),
    "_update_config_proto",
    why="TensorFlow uses one CPU device per worker. It sends the initial value of every variable, "
    "even if all workers have the same value. And it fixes two numbers: after how long a silent "
    "worker counts as lost, and the size of the pieces in which it copies what it sends",
    versions=TENSORFLOW,
    instead="constructor arguments",
)
class MultiWorkerExtended(CollectiveAllReduceExtended):
    """TensorFlow's multi-worker strategy with virtual CPU devices and an adjustable heartbeat.

    On CPUs a replica has several collective operations under way at the same time.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        cluster_resolver: as in `tf.distribute.MultiWorkerMirroredStrategy`.
        communication_options: as in `tf.distribute.MultiWorkerMirroredStrategy`.
        heartbeat_timeout_seconds: a worker that is silent for this long counts as lost.
    """

    _server_runs = False

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        communication_options: tf.distribute.experimental.CommunicationOptions,
        heartbeat_timeout_seconds: float,
    ):
        self._heartbeat_milliseconds = int(1000 * heartbeat_timeout_seconds)
        _SERVER.write(self, MultiWorkerExtended._server_runs)
        self.before_creating: BeforeCreating = create_alone
        self._is_equal = False
        super().__init__(strategy, cluster_resolver, communication_options)
        MultiWorkerExtended._server_runs = _SERVER.of(self)
        if _WORKERS.of(self) > 1:
            for launcher in (*_LAUNCHERS.of(_OPS.of(self)), host_launcher_of(self)):
                if tf.DeviceSpec.from_string(_DEVICE.of(launcher)).device_type == "CPU":
                    _TOKEN.write(launcher, _TakenInTurns(launcher))

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple:
        devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
        cpu = tf.config.list_physical_devices("CPU")[0]
        virtual = len(tf.config.get_logical_device_configuration(cpu) or [None])
        if kind == "CPU":
            devices = tuple(f"{worker_device}/device:CPU:{index}" for index in range(virtual))
        return devices, kind

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        if _WORKERS.of(self) > 1:
            check_exchangeable(kwargs.get("dtype"), kwargs.get("name"))
            kwargs, self._is_equal = self.before_creating(kwargs)
        return super()._create_variable(next_creator, **kwargs)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Structure, **kwargs: Any
    ) -> Any:
        if replica_id == 0 and self._is_equal:
            return kwargs["initial_value"]  # the chief need not send it
        return super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, **kwargs
        )

    def _update_config_proto(self, config_proto: Any) -> Any:
        config = super()._update_config_proto(config_proto)
        coordination = config.experimental.coordination_config
        coordination.heartbeat_timeout_in_ms = self._heartbeat_milliseconds
        config.experimental.recv_buf_max_chunk = CHUNK_BYTES
        return config


def launcher_of(strategy: tf.distribute.Strategy, replica_id: int) -> Any:
    """The object that launches a replica's collective operations in `MultiWorkerExtended`."""
    launchers = _LAUNCHERS.of(_OPS.of(strategy.extended))
    return launchers[replica_id % len(launchers)]


def host_launcher_of(extended: tf.distribute.StrategyExtended) -> Structure:
    """The object that launches collective operations with one value per worker."""
    return _LAUNCHERS.of(_HOST_OPS.of(extended))[0]


class _TakenInTurns:
    """Takes the place of the variable by which TensorFlow orders a launcher's operations.

    Behind it are several variables, given to the operations in turns. Operations with the same
    variable run one after the other. All processes give them out in the same order, so no operation
    can wait for a later one.
    """

    def __init__(self, launcher: Any):
        with tf.init_scope(), tf.device(_DEVICE.of(launcher)):
            more = [tf.Variable(0.0) for _ in range(OPERATIONS_UNDER_WAY - 1)]
        self._variables = itertools.cycle([_TOKEN.of(launcher), *more])

    @property
    def handle(self) -> tf.Tensor:
        return next(self._variables).handle
