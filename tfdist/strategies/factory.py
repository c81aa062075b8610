"""`tfdist.Strategy(name)`: a strategy by name, or the one that fits where the script runs."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from tfdist.strategies.mirrored import MirroredStrategy

_AVAILABLE = {"mirrored": MirroredStrategy}
_PLANNED = ("multi_worker", "horovod", "parameter_server")


def Strategy(name: str = "auto", **options: Any) -> tf.distribute.Strategy:
    """Makes the strategy called `name`.

    Args:
        name: "mirrored", or "auto" for the one that fits: Horovod where Horovod started the
            process, parameter servers or several workers where `TF_CONFIG` names them, else
            mirrored on the local devices. "auto" logs what it chose and why.
        **options: the arguments of the strategy's class.

    Returns:
        A `tfdist.MirroredStrategy`.

    Raises:
        ValueError: for an unknown name, for one that is not available yet, and for an option that
            is not available yet.
        TypeError: for an option that the class does not have.

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
    for option in ("compression", "staleness"):
        if options.pop(option, None) is not None:
            raise ValueError(
                f"The option `{option}` is not available yet in this version of tfdist; leave it "
                f"out. Received: {option} for the strategy {name!r}"
            )
    return _AVAILABLE[name](**options)


def _choose() -> tuple[str, str]:
    """The name of the strategy that fits this process, and the reason."""
    for variable in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"):
        if variable in os.environ:
            return "horovod", f"{variable} is set"
    cluster = _cluster()
    if cluster.get("ps"):
        return "parameter_server", "TF_CONFIG has a `ps` job"
    workers = len(cluster.get("worker", [])) + len(cluster.get("chief", []))
    if workers > 1:
        return "multi_worker", f"TF_CONFIG has {workers} workers"
    gpus = len(tf.config.list_logical_devices("GPU"))
    cpus = len(tf.config.list_logical_devices("CPU"))
    return "mirrored", f"this is one process with {gpus} GPU(s) and {cpus} CPU device(s)"


def _cluster() -> dict:
    """The `cluster` of TF_CONFIG; empty without one."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        return json.loads(text).get("cluster", {})
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"The environment variable TF_CONFIG must be a JSON object. Received: {text!r}"
        ) from error
