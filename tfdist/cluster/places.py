"""The places of the tasks of a cluster that is alone on this machine: addresses and GPUs."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator, Mapping, Sequence

from tfdist.cluster.addresses import reserved_ports, without_proxy
from tfdist.cluster.config import Cluster

LOOPBACK = "127.0.0.1"
"""Where the tasks of one machine find each other."""


@contextlib.contextmanager
def clustered(
    tasks: Sequence[tuple[str, int]], environ: Mapping[str, str]
) -> Iterator[list[dict[str, str]]]:
    """The environments of a cluster's tasks, with TF_CONFIG. Keep it open while the tasks run.

    Args:
        tasks: the job and index of each task.
        environ: the variables that all tasks have.

    Yields:
        The environments, in the order of `tasks`.

    Raises:
        OSError: when there are not enough free ports.
    """
    with reserved_ports(len(tasks)) as ports:
        addresses = [f"{LOOPBACK}:{port}" for port in ports]
        common = without_proxy(environ, addresses)
        jobs: dict[str, tuple[str, ...]] = {}
        for (kind, _), address in zip(tasks, addresses):
            jobs[kind] = (*jobs.get(kind, ()), address)
        yield [
            {
                **common,
                "TF_CONFIG": Cluster(jobs, *task).to_tf_config(),
                **own_gpus(task, len(jobs["worker"]), gpus(environ)),
            }
            for task in tasks
        ]


def own_gpus(task: tuple[str, int], workers: int, devices: list[str]) -> dict[str, str]:
    """Divides the GPUs among the workers, because two processes cannot share a GPU."""
    kind, index = task
    each = len(devices) // workers
    if kind == "worker" and not each:
        return {}
    own = devices[index * each : (index + 1) * each] if kind == "worker" else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if devices else {}


def gpus(environ: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Args:
        environ: the environment variables.

    Example:

    >>> from tfdist.cluster.places import gpus
    >>> gpus({"CUDA_VISIBLE_DEVICES": "2,3"})
    ['2', '3']
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(len(glob.glob("/proc/driver/nvidia/gpus/*")))]
    names = [name.strip() for name in visible.split(",")]
    return [] if "-1" in names else [name for name in names if name]
