"""Faults in the operations of an elastic group, at places that a text says."""

from __future__ import annotations

import os
import random
import signal
import threading

from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step

happened: list[str] = []
_random = random.Random(0)


def install(faults: str, number: int) -> None:
    """Makes the faults happen in this process.

    Args:
        faults: "interrupt@K" breaks the connections of rank 0 in about every K-th operation.
            "kill@K" kills the process with number N in its K * (N + 1)-th operation.
        number: the number of this process.
    """
    kind, _, often = faults.partition("@")
    act = {"interrupt": _interrupting, "kill": _dying}[kind](number, int(often))
    execute, is_step_safe = Group.execute, _Safe()

    def execute_faultily(group: Group, operation):
        if group.is_operating:
            return execute(group, operation)
        if is_step_safe(group, operation):
            act(group)
        return execute(group, operation)

    Group.execute = execute_faultily


class _Safe:
    """Whether an operation may be lost: the first step of a model may not, it makes variables."""

    def __init__(self) -> None:
        self._made = -1

    def __call__(self, group: Group, operation) -> bool:
        if not isinstance(operation, Step):
            return True
        before, self._made = self._made, group.made.count
        return before == self._made


def _interrupting(number: int, often: int):
    def act(group: Group) -> None:
        if number == 0 and _random.random() < 1 / often:
            _soon(lambda: group._interrupt(group.generation), f"interrupt in {group._completed}")

    return act


def _dying(number: int, often: int):
    count = 0

    def act(group: Group) -> None:
        nonlocal count
        count += 1
        if count == often * (number + 1):
            _soon(lambda: os.kill(os.getpid(), signal.SIGKILL), f"death in {count}")

    return act


def _soon(act, name: str) -> None:
    """Acts in a thread: before the operation begins, or while it runs."""
    happened.append(name)
    seconds = _random.choice([0, 0.0005, 0.002, 0.01])
    if seconds:
        threading.Timer(seconds, act).start()
    else:
        act()
