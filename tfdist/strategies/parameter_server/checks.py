"""Checks of the options that only `tfdist.ParameterServerStrategy` has."""

from __future__ import annotations

import os
from collections.abc import Callable

import keras

from tfdist.arguments import check_callable, check_instance, check_path, shown
from tfdist.compression.base import Compressor
from tfdist.compression.registry import get
from tfdist.options import Options
from tfdist.parameter_server.pull import check_pull, codes_differences
from tfdist.staleness import Policies
from tfdist.validation import check_choice, check_integer, check_seconds


def check(
    options: Options,
    input: str,
    max_pending: int | None,
    worker_timeout: float,
    record: str | os.PathLike | None,
    variable_partitioner: Callable | None,
) -> None:
    """Raises for options that are out of range, or of a wrong type."""
    if options.balance:
        raise ValueError(
            "`balance` moves the parts of a synchronous step. Workers of a parameter server take a "
            'batch when they are ready: leave `balance` out, and take `input="dynamic"` where '
            "slow workers should get fewer batches, or with `Synchronous()` fewer parts: "
            "`Synchronous(parts_per_worker=2, backup=True)`. Received: balance=True"
        )
    if options.local is not None:
        raise ValueError(
            "`local` is for replicas that have the weights. Workers of a parameter server fetch "
            "them for each step: leave `local` out, or take another strategy. "
            f"Received: local={options.local}"
        )
    if options.exchange != "auto":
        raise ValueError(
            "`exchange` is how replicas sum gradients. Workers of a parameter server send theirs "
            "to the parameter servers: leave `exchange` out. "
            f"Received: exchange={options.exchange!r}"
        )
    if options.sharding is not None:
        raise ValueError(
            "`sharding` divides the optimizer's state among replicas. With parameter servers it is "
            "divided among them already: leave `sharding` out. "
            f"Received: sharding={options.sharding!r}"
        )
    check_choice("input", input, ("static", "dynamic"))
    check_seconds("worker_timeout", worker_timeout)
    if max_pending is not None:
        check_integer("max_pending", max_pending, 1)
    if record is not None:
        check_path("record", record)
    if variable_partitioner is not None:
        check_callable("variable_partitioner", variable_partitioner)


def updates_of_snapshots(
    snapshot_every: int | None,
    snapshot_dir: str | os.PathLike | None,
    record: str | os.PathLike | None,
) -> int | None:
    """After how many updates a snapshot is taken: 0 for never, None for about once a minute.

    Args:
        snapshot_every: what the user has chosen.
        snapshot_dir: the folder for snapshots; None for a temporary one.
        record: the path of the record; None for no record.

    Raises:
        ValueError: for a number that is out of range, and for snapshots of a recorded run.
        TypeError: for what is no number.
    """
    if snapshot_every is not None and snapshot_every is not False:
        check_integer("snapshot_every", snapshot_every, 0)
    asked = snapshot_dir is not None if snapshot_every is None else bool(snapshot_every)
    if asked and record is not None:
        raise ValueError(
            "A record cannot tell of training that goes back to a snapshot, so a run that is "
            "recorded has no snapshots. Leave out `snapshot_every` and `snapshot_dir`, or "
            f"`record`. Received: snapshot_every={snapshot_every}, "
            f"snapshot_dir={shown(snapshot_dir)}, record={shown(record)}"
        )
    if snapshot_every is None:
        return None if record is None else 0
    return int(snapshot_every)


def absolute(folder: str | os.PathLike | None) -> str | None:
    """`snapshot_dir` as all processes name it, whatever their working directories are.

    Raises:
        TypeError: for what is no path.
    """
    if folder is None:
        return None
    check_path("snapshot_dir", folder)
    path = os.fspath(folder)
    return path if "://" in path else os.path.abspath(path)


def pull(
    compression: str | Compressor | None, policies: Policies, record: str | os.PathLike | None
) -> Compressor | None:
    """The compressor that `pull_compression` means; None for no compression.

    Args:
        compression: what the user has chosen.
        policies: what is done about stale gradients.
        record: the path of the record; None for no record.

    Raises:
        ValueError: for no compressor, for one that cannot code weights, and beside options that
            need the weights as they are.
    """
    if compression is None:
        return None
    kinds, called = (str, Compressor), "tfdist.compression.Compressor, or the name of one"
    check_instance("pull_compression", compression, kinds, called)
    compressor = get(compression)
    check_pull(compressor)
    why = None
    if record is not None:
        why = "a record does not have the weights that workers decode. Leave out `record`"
    elif policies.compensates:
        why = (
            "a policy that compensates needs the weights that a gradient was computed from. Leave "
            "out `DelayCompensated`"
        )
    elif policies.synchronous and codes_differences(compressor):
        why = (
            "the parts of a global batch would be computed with other weights on each worker, as "
            "each worker has received other differences. Take half precision, or leave out "
            "`Synchronous`"
        )
    if why is not None:
        raise ValueError(
            f"`pull_compression` is not possible here: {why}, or `pull_compression`. "
            f"Received: pull_compression={compressor}, record={shown(record)}"
        )
    return compressor


def check_compiled(model: keras.Model) -> None:
    """Raises ValueError if `compile` was asked for what the strategy cannot do."""
    for name in ("jit_compile", "run_eagerly"):
        if getattr(model, name):
            raise ValueError(
                "A worker runs a step as a function of TensorFlow. Compile with "
                f"`{name}=False` or leave it out. Received: {name}=True"
            )
