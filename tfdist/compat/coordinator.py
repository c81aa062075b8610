"""The coordinator of TensorFlow's parameter servers, and its workers."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import ClusterCoordinator
from tensorflow.python.eager.executor import Executor

from tfdist.compat.registry import READ, REPLACED, TENSORFLOW, WRITTEN, overrides, touch

_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_CONTEXT = "tensorflow.python.distribute.coordinator.coordinator_context"
_SCHEDULING: dict[str, str] = {
    "why": "`ClusterCoordinator.schedule` takes only TensorFlow functions, and does not tell "
    "which worker runs them",
    "versions": TENSORFLOW,
    "instead": "a public way to schedule on a chosen worker",
}
_CLUSTER = touch(f"{_COORDINATOR}:ClusterCoordinator", "_cluster", READ, **_SCHEDULING)
_SCHEDULE = touch(
    *(f"{_COORDINATOR}:Cluster", "schedule", READ, "self", "function", "args", "kwargs"),
    **_SCHEDULING,
)
_DISPATCH = touch(_CONTEXT, "get_current_dispatch_context", READ, **_SCHEDULING)
_WORKER = touch(f"{_CONTEXT}:DispatchContext", "worker", READ, **_SCHEDULING)
_EXECUTOR, _INDEX, _DEVICE = (
    touch(f"{_COORDINATOR}:Worker", name, READ, **_SCHEDULING)
    for name in ("executor", "worker_index", "device_name")
)


def cluster_of(coordinator: object) -> Any:
    """What TensorFlow's coordinator knows of its cluster."""
    return _CLUSTER.of(coordinator)


def run_on_workers(coordinator: Any, function: Callable[[int, str], None], times: int) -> None:
    """Calls `function(index, device)` of a worker `times` times, in the threads of free workers.

    What the function does under `device` runs on that worker. If a call fails because its worker is
    lost, the function is called again in another worker's thread. The thread of the lost worker
    waits until the worker is back. Other errors are kept for `coordinator.join`.
    """

    def on_worker() -> None:
        worker = _WORKER.of(_DISPATCH.get()())
        # When a worker is lost, errors remain here, such as from tensors that could not be freed
        # there. If they stayed, the next call would fail too.
        _EXECUTOR.of(worker).clear_error()
        function(_INDEX.of(worker), _DEVICE.of(worker))

    for _ in range(times):
        _SCHEDULE.of(_CLUSTER.of(coordinator))(on_worker, (), {})


_LEAVING: dict[str, str] = {
    "why": "when a call in a worker's thread has ended, TensorFlow waits for all that the process' "
    "own executor still does, such as freeing tensors on other workers. One worker that hangs "
    "would stop the threads of all others",
    "versions": TENSORFLOW,
    "instead": "a coordinator whose threads leave a worker's executor without waiting for another",
}
_PRESENT_EXECUTOR = touch(
    "tensorflow.python.eager.context:Context", "executor", REPLACED, **_LEAVING
)
_HANDLE = touch("tensorflow.python.eager.executor:Executor", "_handle", READ, **_LEAVING)
_DELETE = touch("tensorflow.python.pywrap_tfe", "TFE_DeleteExecutor", READ, **_LEAVING)


@overrides("__del__", **_LEAVING)
class _PresentExecutor(Executor):
    """The executor that a thread has now, for somebody who wants to set it again later."""

    __slots__ = ()

    def __del__(self) -> None:
        """Waits for nothing: the executor itself stays."""
        try:
            _DELETE.get()(_HANDLE.of(self))
        except (AttributeError, TypeError):
            pass  # the modules are gone, as Python ends


@functools.cache
def leave_executors_at_once() -> None:
    """Lets threads set another executor without waiting for the one that they had."""

    def make(original: property) -> property:
        def present(context: object) -> Executor:
            found = original.fget(context)  # type: ignore[misc]
            found.__class__ = _PresentExecutor
            return found

        return property(present, original.fset)

    _PRESENT_EXECUTOR.replace(make)


@overrides(
    "__del__",
    why="TensorFlow's coordinator stops its threads when it is garbage-collected, and waits for "
    "locks. The collecting thread itself may hold such a lock, or a thread that waits for a lost "
    "worker; then Python does not end",
    versions=TENSORFLOW,
    instead="a public way to stop the coordinator",
)
class Coordinator(ClusterCoordinator):
    """A `ClusterCoordinator` that stays until the process ends."""

    def __init__(self, strategy: tf.distribute.Strategy):
        leave_executors_at_once()
        super().__init__(strategy)

    def __del__(self) -> None:
        """Leaves the threads, which end with the process."""


_WITH_CONTEXT = touch(
    *(_CONTEXT, "with_dispatch_context", READ, "worker_obj"),
    why="in a replay, `tf.distribute.coordinator.experimental_get_current_worker_index` in a step "
    "must answer as in the recorded run",
    versions=TENSORFLOW,
    instead="a public context",
)


@contextlib.contextmanager
def as_worker(index: int) -> Iterator[None]:
    """In this context a step sees itself on worker `index`; for threads without a coordinator."""
    with _WITH_CONTEXT.get()(types.SimpleNamespace(worker_index=index)):
        yield


_IS_LOST_WORKER, _IS_LOST_PS = (
    touch(
        *(_COORDINATOR, name, READ),
        why="when a worker is lost, training goes on; when a parameter server is lost, training "
        "ends with an error that names it. TensorFlow knows which error means which loss",
        versions=TENSORFLOW,
        instead="separate error classes for lost workers and parameter servers",
    )
    for name in ("_is_worker_failure", "_is_ps_failure")
)


def is_lost_worker(error: Exception) -> bool:
    """Whether TensorFlow sees `error` as the loss of a worker; training goes on after it."""
    return _IS_LOST_WORKER.get()(error)


def is_lost_ps(error: Exception) -> bool:
    """Whether TensorFlow sees `error` as the loss of a parameter server."""
    return _IS_LOST_PS.get()(error)


_ALLOW = touch(
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended",
    *("_allow_run_without_coordinator", WRITTEN),
    why="the chief itself runs the updates on the parameter servers, and TensorFlow should not "
    "warn of it",
    versions=TENSORFLOW,
    instead="a public option",
)


def allow_functions_of_coordinator(strategy: tf.distribute.Strategy) -> None:
    """Lets the coordinator itself run functions with `strategy.run`, without a warning."""
    _ALLOW.write(strategy.extended, True)
