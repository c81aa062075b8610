"""`tfdist.Strategy(name)`: a strategy by name, or the one that fits where the script runs."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tfdist.arguments import shown
from tfdist.cluster import Cluster, choose_strategy
from tfdist.strategies.horovod.backend import is_installed
from tfdist.strategies.registry import BACKENDS


def Strategy(name: str = "auto", **options: Any) -> tf.distribute.Strategy:
    """Makes the strategy called `name`.

    Args:
        name: "mirrored", "multi_worker", "horovod", "parameter_server" or "auto". With "auto"
            tfdist chooses: Horovod if horovodrun or MPI started the process; a parameter server if
            `TF_CONFIG` has a `ps`; several workers if `TF_CONFIG` or Slurm names them; else
            mirrored on the local devices. "auto" logs its choice and the reason at level INFO;
            `tfdist doctor` shows both. In the task `evaluator` of TF_CONFIG all names mean the
            devices of this process, and only "mirrored" uses `options`; see
            `tfdist.SidecarEvaluator`.
        **options: the arguments of the strategy's class.

    Returns:
        A `tfdist.MirroredStrategy`, `tfdist.MultiWorkerMirroredStrategy`,
        `tfdist.HorovodStrategy` or `tfdist.ParameterServerStrategy`.

    Raises:
        ValueError: for an unknown name, and for `staleness` with another strategy than
            "parameter_server".
        TypeError: for an option that the class does not have.
        ImportError: for "horovod" where it is not installed.
        TimeoutError: when other processes of the job cannot be reached.

    Example:

    >>> import tfdist
    >>> tfdist.Strategy("mirrored", accumulation_steps=4).options.accumulation_steps
    4
    """
    requested = f"name={shown(name)}"
    if not isinstance(name, str) or name not in {"auto", *BACKENDS}:
        raise ValueError(
            f"Unknown strategy. Available: {sorted(BACKENDS)} and 'auto'. Received: {requested}"
        )
    several_processes = name != "mirrored"
    if name == "auto":
        name, reason = _choose()
        requested += f", which means {name!r} here, because {reason}"
        tf.get_logger().info("tfdist: strategy %r, because %s", name, reason)
    if several_processes and _is_evaluator():
        alone = BACKENDS["mirrored"].load()()
        alone.is_evaluator = True
        return alone
    backend = BACKENDS[name]
    if not backend.is_asynchronous and options.pop("staleness", None) is not None:
        raise ValueError(
            "Only the strategy 'parameter_server' trains asynchronously, so that gradients may be "
            f"stale; leave `staleness` out. Received: staleness for the strategy {requested}"
        )
    return backend.load()(**options)


def _is_evaluator() -> bool:
    cluster = Cluster.from_environment()
    return cluster is not None and cluster.task_type == "evaluator"


def _choose() -> tuple[str, str]:
    """The name of the strategy that fits this process, and the reason."""
    devices = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")
    return choose_strategy(os.environ, len(devices), is_installed())
