"""Groups of processes that TensorFlow's collective operations connect, again and again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

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
_COORDINATE = touch(
    *(_OF_CONTEXT, "configure_coordination_service", READ),
    *("self", "service_type", "service_leader"),
    why="in a cluster with a job `ps` TensorFlow expects the service that looks after workers in "
    "that job. But a reducer, which TensorFlow knows as a ps, has none",
    versions=TENSORFLOW,
    instead="a job in a cluster that takes part in collective operations only",
)
_ABORT = touch(_OF_CONTEXT, "abort_collective_ops", READ, "self", "code", "message", **_AGAIN)


def form_group(
    addresses: Mapping[int, str], own: int, reducers: Mapping[int, str] | None = None
) -> None:
    """Connects this process to others for collective operations; may be called again.

    The variables of the process stay. Operations of an earlier group must have been aborted.

    Args:
        addresses: the address of each member, by its number. The numbers may have holes.
        own: the number of this process, the same in each call.
        reducers: the same of processes that only sum for the members.
    """
    jobs = {"worker": dict(addresses)}
    if reducers:
        jobs["ps"] = dict(reducers)  # TensorFlow counts no `ps` as a worker
    job = "worker" if own in addresses else "ps"
    leader = f"/job:worker/replica:0/task:{min(addresses)}"
    _join(tf.train.ClusterSpec(jobs), job, own, leader)


def join_as_reducer(jobs: Mapping[str, Sequence[str]], own: int) -> None:
    """Connects a reducer to the workers of a `MultiWorkerExtended`, for messages of its own.

    Args:
        jobs: the addresses of all processes, by their jobs in TF_CONFIG.
        own: the number of this reducer.
    """
    leader = "chief" if jobs.get("chief") else "worker"
    cluster = tf.train.ClusterSpec(jobs_with_reducers(jobs))
    _join(cluster, "ps", own, f"/job:{leader}/replica:0/task:0")


def jobs_with_reducers(jobs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The jobs by the names that TensorFlow knows. It counts no `ps` as a worker."""
    names = {"chief": "chief", "worker": "worker", "reducer": "ps"}
    return {names[job]: list(jobs[job]) for job in names if jobs.get(job)}


def look_after_workers(jobs: Mapping[str, Sequence[str]]) -> None:
    """Lets the first worker run the service that notices lost workers; before they connect.

    Args:
        jobs: as for `join_as_reducer`.
    """
    first, *_ = names = [job for job in ("chief", "worker") if jobs.get(job)]
    config = tf.compat.v1.ConfigProto().experimental.coordination_config
    for name in names:
        config.coordinated_job_list.add(name=name, num_tasks=len(jobs[name]))
    _COORDINATE.of(_CONTEXT.get()())(
        "standalone",
        f"/job:{first}/replica:0/task:0",
        coordinated_jobs=list(config.coordinated_job_list),
    )


def _join(cluster: tf.train.ClusterSpec, job: str, own: int, leader: str) -> None:
    """Starts this process' server, or lets it know another cluster."""
    definition = tensorflow_server_pb2.ServerDef(
        cluster=cluster.as_cluster_def(), job_name=job, task_index=own, protocol="grpc"
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
    logger, placeholder = logging.getLogger("absl"), logging.NullHandler()
    before = logger.level
    # Where the root logger has no handler, Abseil gives it one, even for what is not printed. From
    # then on each message of TensorFlow's logger, which has a handler of its own, is printed twice.
    logging.root.addHandler(placeholder)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
        logging.root.removeHandler(placeholder)


def abort_group(message: str) -> None:
    """Makes the collective operations of this process fail, those that wait and those that come."""
    _ABORT.of(_CONTEXT.get()())(tf.errors.UNAVAILABLE, message)
