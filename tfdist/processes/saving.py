"""Saves state of which each process has a part: the first writes, the others send their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.engines.processes import Processes
from tfdist.step.replica_state import ReplicaState

END = -1
"""What the first process tells the others when nothing comes next."""


def write_together(
    processes: Processes, states: Sequence[ReplicaState], write: Callable[[], Any]
) -> Any:
    """Calls `write` in the first process; called by all processes.

    `write` may ask each of `states` to save itself. The first process then tells the others which
    state comes next, and all processes exchange its rows. At the end the first process tells the
    others whether the save succeeded.

    Returns:
        What `write` returns; None in the other processes.

    Raises:
        RuntimeError: in the other processes, when the first one could not write.
        ConnectionError: when another process is lost; names the lost rank where known.
    """
    with processes.naming_lost_ranks():
        if processes.is_chief:
            return _receive_and_write(processes, states, write)
        _send(processes, states)
        return None


def _receive_and_write(
    processes: Processes, states: Sequence[ReplicaState], write: Callable[[], Any]
) -> Any:
    for number, state in enumerate(states):
        state.announce = lambda number=number: tell(processes, number)
    try:
        written = write()
    except BaseException as error:
        if not _is_loss(processes, error):
            tell(processes, END)
            processes.all_gather_texts(f"{type(error).__name__}: {error}")
        raise
    finally:
        for state in states:
            state.announce = None
    tell(processes, END)
    processes.all_gather_texts("")
    return written


def _is_loss(processes: Processes, error: BaseException) -> bool:
    """Whether a process is lost; a remote file system raises errors of the same types."""
    cause = error.__cause__ if isinstance(error, ConnectionError) else error
    return isinstance(cause, tf.errors.OpError) and processes.lost(cause) is not None


def _send(processes: Processes, states: Sequence[ReplicaState]) -> None:
    while (number := tell(processes, END)) != END:
        for _ in states[number].gather():
            pass
    (message, *_) = processes.all_gather_texts("")
    if message:
        raise RuntimeError(f"Rank 0 could not save the model. Its error was: {message}")


def tell(processes: Processes, number: int) -> int:
    """Sends the first process' `number` to all; returns it in all."""
    return int(processes.all_gather([number])[0, 0])
