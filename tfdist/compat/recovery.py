"""What the chief needs to go on after a parameter server was lost and is back."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection

import tensorflow as tf

from tfdist.compat.coordinator import cluster_of
from tfdist.compat.registry import READ, TENSORFLOW, WRITTEN, touch

_CONTEXT = "tensorflow.python.eager.context"
_AGAIN: dict[str, str] = {
    "why": "a parameter server that was started again must be connected to anew. TensorFlow does "
    "this for workers only, although the same call does it for every server",
    "versions": TENSORFLOW,
    "instead": "a public way to connect to servers that were started again",
}
_GET_CONTEXT = touch(_CONTEXT, "context", READ, **_AGAIN)
_UPDATE = touch(*(f"{_CONTEXT}:Context", "update_server_def", READ, "self", "server_def"), **_AGAIN)
_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_HANDLER = touch(f"{_COORDINATOR}:Cluster", "failure_handler", READ, **_AGAIN)
_WORKER_HANDLER = f"{_COORDINATOR}:WorkerPreemptionHandler"
_LOCK, _SERVER_DEF = (
    touch(_WORKER_HANDLER, name, READ, **_AGAIN) for name in ("_cluster_update_lock", "_server_def")
)
_QUEUE = touch(f"{_COORDINATOR}:Cluster", "closure_queue", READ, **_AGAIN)
_ERROR, _QUEUE_LOCK = (
    touch(f"{_COORDINATOR}:_CoordinatedClosureQueue", name, kind, **_AGAIN)
    for name, kind in (("_error", WRITTEN), ("_queue_lock", READ))
)


def connect_again(coordinator: object, without: Collection[int]) -> None:
    """Connects to servers that were started again. Blocks until all servers answer.

    Variables and other tensors on servers that have lived on stay as they are.

    Args:
        coordinator: the coordinator, made patient with `connect_when`.
        without: the workers that are lost. TensorFlow connects to them when they are back.
    """
    cluster = cluster_of(coordinator)
    handler = _HANDLER.of(cluster)
    server_def = copy.deepcopy(_SERVER_DEF.of(handler))
    for job in server_def.cluster.job:
        for worker in without if job.name == "worker" else ():
            job.tasks.pop(worker, None)
    with _LOCK.of(handler):  # the process would crash if two threads did it at a time
        _UPDATE.of(_GET_CONTEXT.get()())(server_def)
    # Otherwise the next call of the coordinator would raise what a thread met meanwhile.
    queue = _QUEUE.of(cluster)
    with _QUEUE_LOCK.of(queue):
        _ERROR.write(queue, None)


_PATIENCE: dict[str, str] = {
    "why": "TensorFlow's thread that connects to a lost worker blocks until the worker is back. "
    "Meanwhile nobody else could connect to a parameter server that is back",
    "versions": TENSORFLOW,
    "instead": "a way to connect to some servers while others are lost",
}
_RUNS, _EVENT, _THREAD = (
    touch(_WORKER_HANDLER, name, WRITTEN, **_PATIENCE)
    for name in (
        "_should_preemption_thread_run",
        "_cluster_due_for_update_or_finish",
        "_preemption_handler_thread",
    )
)
_STOP, _LOOP = (
    touch(_WORKER_HANDLER, name, READ, "self", **_PATIENCE)
    for name in ("stop", "_preemption_handler")
)


def connect_when(coordinator: object, wait: Callable[[], None]) -> None:
    """Lets TensorFlow's thread call `wait` before it connects to a worker that was lost."""
    handler = _HANDLER.of(cluster_of(coordinator))
    _STOP.of(handler)()
    _THREAD.of(handler).join()
    _EVENT.write(handler, _Patient(wait))
    _RUNS.write(handler, True)
    _THREAD.write(handler, threading.Thread(target=_LOOP.of(handler), daemon=True))
    _THREAD.of(handler).start()


class _Patient(threading.Event):
    """An event that has come when somebody has set it, and `more` has returned."""

    def __init__(self, more: Callable[[], None]):
        super().__init__()
        self._more = more

    def wait(self, timeout: float | None = None) -> bool:
        """Waits."""
        result = super().wait(timeout)
        self._more()
        return result


_RESOURCE: dict[str, str] = {
    "why": "the variables of a server that was lost are made anew on the server that has replaced "
    "it, while the model, the optimizer and the metrics keep their variable objects",
    "versions": TENSORFLOW,
    "instead": "a public way to give a variable object a new resource",
}
_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
_RESOURCE_VARIABLE = touch(_VARIABLES, "ResourceVariable", READ, **_RESOURCE)
_HANDLE = touch(f"{_VARIABLES}:BaseResourceVariable", "_handle", WRITTEN, **_RESOURCE)
_INNER = touch("tensorflow.python.distribute.ps_values:CachingVariable", "_v", READ, **_RESOURCE)


def plain_variable(value: tf.Tensor) -> tf.Variable:
    """A variable on the present device that no strategy knows of."""
    return _RESOURCE_VARIABLE.get()(value, trainable=False)


def move_to(variable: tf.Variable, value: tf.Tensor) -> None:
    """Gives a variable a new resource on the present device, with this value."""
    _HANDLE.write(inner_variable(variable), plain_variable(value).handle)


def inner_variable(variable: tf.Variable) -> tf.Variable:
    """The variable that has the resource, inside of the wrappers of parameter servers."""
    while _INNER.name in vars(variable):
        variable = _INNER.of(variable)
    return variable
