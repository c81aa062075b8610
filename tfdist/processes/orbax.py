"""Refuses Keras' `OrbaxCheckpoint` where it would not save the one model of all replicas."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.local.choices import LocalSteps


def refuse_orbax(
    callbacks: Sequence[keras.callbacks.Callback],
    several_processes: bool,
    sharding: str | None,
    local: LocalSteps | None,
) -> None:
    """Checks the callbacks of a run before it begins.

    `OrbaxCheckpoint` reads the variables itself, and writes with Orbax. Nothing calls tfdist there.
    With `local` its files lack the optimizer states of all replicas but the first: that is warned
    of.

    Args:
        callbacks: the callbacks.
        several_processes: whether there are other processes, each with the same callbacks.
        sharding: what the replicas divide; None for nothing.
        local: how the replicas train apart; None if they do not.

    Raises:
        ValueError: for an `OrbaxCheckpoint` that would save something else, or twice.
    """
    kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # not in older versions
    for callback in callbacks:
        if kind is None or not isinstance(callback, kind):
            continue
        if several_processes:
            raise ValueError(
                "OrbaxCheckpoint knows of other processes with JAX only. Here each process would "
                "write the same folder. Take keras.callbacks.ModelCheckpoint or BackupAndRestore. "
                "Received: OrbaxCheckpoint in one of several processes"
            )
        if sharding is not None:
            raise ValueError(
                "With `sharding` a replica has parts only, and OrbaxCheckpoint would save those of "
                "the first replica. Take keras.callbacks.ModelCheckpoint or BackupAndRestore. "
                f"Received: OrbaxCheckpoint with sharding={sharding!r}"
            )
        if local is not None and callback.save_freq != "epoch":
            raise ValueError(
                "With `local` each replica has weights of its own within an epoch, and "
                "OrbaxCheckpoint would save those of the first replica. Give "
                "`save_freq='epoch'`, or take keras.callbacks.ModelCheckpoint or BackupAndRestore, "
                "which end the round first. "
                f"Received: OrbaxCheckpoint with save_freq={callback.save_freq}, local={local}"
            )
        if local is not None:
            tf.get_logger().warning(
                "tfdist: with `local` each replica has an optimizer state of its own, and "
                "OrbaxCheckpoint saves that of the first replica only. All replicas would go on "
                "with it, so a resumed training differs from one without an interruption. "
                "keras.callbacks.ModelCheckpoint and BackupAndRestore save all."
            )
