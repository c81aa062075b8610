"""This process' membership in an elastic job, as its launcher has left it in the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TypeVar, cast

from tfdist.elastic import ending
from tfdist.elastic.connection import Connection
from tfdist.elastic.group import Group
from tfdist.elastic.journal import Journal
from tfdist.elastic.link import Link
from tfdist.environment import BACKUP_DIR, ELASTIC, JOURNAL

_Kind = TypeVar("_Kind", bound=Connection)
_joined: list[tuple[Group, Connection]] = []
# TensorFlow, Keras and the libraries below them read these variables when they are imported.
_READ_EARLY = ("TF_", "KERAS_", "XLA_", "OMP_", "ONEDNN_", "CUDA_")
_early: dict[str, str] | None = None


def is_elastic() -> bool:
    """Whether a launcher has started this process as a rank of an elastic job."""
    return ELASTIC in os.environ


def number() -> int:
    """The number that the launcher has given to this process."""
    return int(os.environ[ELASTIC].partition(":")[2])


def own_link() -> Link:
    """The connection of this process to its launcher; made once."""
    return Link(int(os.environ[ELASTIC].partition(":")[0]))


def wait_to_be_called() -> None:
    """Waits until the launcher calls this process, which has been started before it is needed.

    Raises:
        SystemExit: when the launcher has ended.
    """
    global _early
    descriptor = int(os.environ[ELASTIC].partition(":")[0])
    with socket.socket(fileno=os.dup(descriptor)) as link:
        if not link.recv(1, socket.MSG_PEEK):
            raise SystemExit("The launcher of this job has ended, so this process ends too.")
    _early = _read_early()


def _read_early() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_EARLY)}


def _check_environment() -> None:
    """Raises RuntimeError if the script has set variables that come too late in this process."""
    now = _read_early()
    if _early is None or now == _early:
        return
    names = sorted({name for name, _ in now.items() ^ _early.items()})
    raise RuntimeError(
        "This process has imported TensorFlow and Keras before it ran the script (tfdist run "
        "--spares), so variables that the script sets for them come too late: set them for tfdist "
        f"run, or leave out --spares. Received: {', '.join(names)} set by the script"
    )


def joined(connect: Callable[[], _Kind]) -> tuple[Group, _Kind]:
    """The group of the job. The first call joins it, and waits for the other ranks.

    Args:
        connect: makes what connects the processes; called once.

    Returns:
        The group, and what `connect` has made.

    Raises:
        RuntimeError: if the script has set variables that come too late in this process.
    """
    if not _joined:
        _check_environment()
        link, made = own_link(), connect()
        journal = Journal(os.environ[JOURNAL]) if JOURNAL in os.environ else None
        kept = os.environ.get(BACKUP_DIR, "")
        group_of_job = Group(link, number(), made, journal, kept)
        ending.watch(link)
        group_of_job.join()
        _joined.append((group_of_job, made))
    group, connection = _joined[0]
    return group, cast(_Kind, connection)
