"""This process' membership in an elastic job, as its launcher has left it in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar, cast

from tfdist.elastic import ending
from tfdist.elastic.connection import Connection
from tfdist.elastic.group import Group
from tfdist.elastic.journal import Journal
from tfdist.elastic.link import Link
from tfdist.environment import ELASTIC, JOURNAL

_Kind = TypeVar("_Kind", bound=Connection)
_joined: list[tuple[Group, Connection]] = []


def is_elastic() -> bool:
    """Whether a launcher has started this process as a rank of an elastic job."""
    return ELASTIC in os.environ


def number() -> int:
    """The number that the launcher has given to this process."""
    return int(os.environ[ELASTIC].partition(":")[2])


def joined(connect: Callable[[], _Kind]) -> tuple[Group, _Kind]:
    """The group of the job. The first call joins it, and waits for the other ranks.

    Args:
        connect: makes what connects the processes; called once.

    Returns:
        The group, and what `connect` has made.
    """
    if not _joined:
        link, made = Link(int(os.environ[ELASTIC].partition(":")[0])), connect()
        journal = Journal(os.environ[JOURNAL]) if JOURNAL in os.environ else None
        group_of_job = Group(link, number(), made, journal)
        ending.watch(link)
        group_of_job.join()
        _joined.append((group_of_job, made))
    group, connection = _joined[0]
    return group, cast(_Kind, connection)
