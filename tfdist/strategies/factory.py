"""`tfdist.Strategy(name)`: a strategy by name, or the one that fits where the script runs."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tfdist.cluster import choose_strategy
from tfdist.strategies.horovod import HorovodStrategy, is_installed
from tfdist.strategies.mirrored import MirroredStrategy
from tfdist.strategies.multi_worker import MultiWorkerMirroredStrategy

_AVAILABLE = {
    "mirrored": MirroredStrategy,
    "multi_worker": MultiWorkerMirroredStrategy,
    "horovod": HorovodStrategy,
}
_PLANNED = ("parameter_server",)


def Strategy(name: str = "auto", **options: Any) -> tf.distribute.Strategy:
    """Makes the strategy called `name`.

    Args:
        name: "mirrored", "multi_worker", "horovod", or "auto" for the one that fits: Horovod where
            horovodrun or MPI started the process, several workers where `TF_CONFIG` or Slurm names
            them, else mirrored on the local devices. "auto" logs its choice and the reason at level
            INFO; `tfdist doctor` shows them.
        **options: the arguments of the strategy's class.

    Returns:
        A `tfdist.MirroredStrategy`, `tfdist.MultiWorkerMirroredStrategy` or
        `tfdist.HorovodStrategy`.

    Raises:
        ValueError: for an unknown name, for one that is not available yet, and for an option that
            is not available yet.
        TypeError: for an option that the class does not have.
        ImportError: for "horovod" where it is not installed.
        TimeoutError: when other processes of the job cannot be reached.

    Example:

    >>> import tfdist
    >>> tfdist.Strategy("mirrored", accumulation_steps=4).options.accumulation_steps
    4
    """
    requested = f"name={name!r}"
    if name == "auto":
        name, reason = _choose()
        requested += f", which means {name!r} here, because {reason}"
        tf.get_logger().info("tfdist: strategy %r, because %s", name, reason)
    if name in _PLANNED:
        raise ValueError(
            f"The strategy {name!r} is not available yet in this version of tfdist. "
            f"Available: {sorted(_AVAILABLE)} and 'auto'. Received: {requested}"
        )
    if name not in _AVAILABLE:
        raise ValueError(
            f"Unknown strategy. Available: {sorted(_AVAILABLE)} and 'auto'. Received: name={name!r}"
        )
    if options.pop("staleness", None) is not None:
        raise ValueError(
            "The option `staleness` is not available yet in this version of tfdist; leave it out. "
            f"Received: staleness for the strategy {name!r}"
        )
    return _AVAILABLE[name](**options)


def _choose() -> tuple[str, str]:
    """The name of the strategy that fits this process, and the reason."""
    devices = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")
    return choose_strategy(os.environ, len(devices), is_installed())
