"""Groups of processes that TensorFlow's collective operations connect, again and again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2

from tfdist.compat.multi_worker import CHUNK_BYTES
from tfdist.compat.registry import READ, TENSORFLOW, touch

_AGAIN: dict[str, str] = {
    "why": "when a process of an elastic job is lost, the others must be freed from the operations "
    "in which they wait for it, and form a new group with the variables that they have",
    "versions": TENSORFLOW,
    "instead": "a public way to abort collective operations, and to change the cluster",
}
_CONTEXT = touch("tensorflow.python.eager.context", "context", READ, **_AGAIN)
_OF_CONTEXT = "tensorflow.python.eager.context:Context"
_HANDLE = touch(_OF_CONTEXT, "_context_handle", READ, **_AGAIN)
_CONFIGURE = touch(
    _OF_CONTEXT, "configure_collective_ops", READ, "self", "collective_leader", **_AGAIN
)
_ENABLE = touch(_OF_CONTEXT, "enable_collective_ops", READ, "self", "server_def", **_AGAIN)
_ABORT = touch(_OF_CONTEXT, "abort_collective_ops", READ, "self", "code", "message", **_AGAIN)


def form_group(addresses: Mapping[int, str], own: int) -> None:
    """Connects this process to others for collective operations; may be called again.

    The variables of the process stay. Operations of an earlier group must have been aborted.

    Args:
        addresses: the address of each member, by its number. The numbers may have holes.
        own: the number of this process, the same in each call.
    """
    leader = f"/job:worker/replica:0/task:{min(addresses)}"
    cluster = tf.train.ClusterSpec({"worker": dict(addresses)}).as_cluster_def()
    definition = tensorflow_server_pb2.ServerDef(
        cluster=cluster, job_name="worker", task_index=own, protocol="grpc"
    )
    definition.default_session_config.experimental.collective_group_leader = leader
    definition.default_session_config.experimental.recv_buf_max_chunk = CHUNK_BYTES
    context = _CONTEXT.get()()
    if _HANDLE.of(context) is None:
        _CONFIGURE.of(context)(leader)
    with _silenced():
        _ENABLE.of(context)(definition)
    context.ensure_initialized()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """TensorFlow warns that variables may not work in a new group; tests show that they do."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def abort_group(message: str) -> None:
    """Makes the collective operations of this process fail, those that wait and those that come."""
    _ABORT.of(_CONTEXT.get()())(tf.errors.UNAVAILABLE, message)
