"""Faults in the operations of an elastic group, at places that a text says."""

from __future__ import annotations

import random
import threading

from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step

happened: list[str] = []
_random = random.Random(0)


def install(faults: str, number: int) -> None:
    """Makes the faults happen in this process.

    Args:
        faults: "interrupt@K" breaks the connections of rank 0 in about every K-th operation.
        number: the number of this process.
    """
    count, made = 0, 0  # operations; variables at the end of the last step
    execute = Group.execute
    often = int(faults.partition("@")[2])

    def execute_faultily(group: Group, operation):
        nonlocal count, made
        if group.is_operating:
            return execute(group, operation)
        count += 1
        # A step may not be lost that makes variables, as the first one does.
        is_step = isinstance(operation, Step)
        repeats = not is_step or made == group.made.count
        if repeats and number == 0 and _random.random() < 1 / often:
            _soon(lambda: group._interrupt(group.generation), f"interrupt in {count}")
        result = execute(group, operation)
        if is_step:
            made = group.made.count
        return result

    Group.execute = execute_faultily


def _soon(act, name: str) -> None:
    """Acts in a thread: before the operation begins, or while it runs."""
    happened.append(name)
    seconds = _random.choice([0, 0.0005, 0.002, 0.01])
    if seconds:
        threading.Timer(seconds, act).start()
    else:
        act()
