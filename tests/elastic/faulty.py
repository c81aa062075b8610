"""Faults in the operations of an elastic group, at places that a text says."""

from __future__ import annotations

import os
import random
import re
import signal
import threading

from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step

happened: list[str] = []
_random = random.Random(0)


def install(faults: str, number: int) -> None:
    """Makes the faults happen in this process.

    Args:
        faults: "interrupt@K" breaks this process' connections in about every K-th operation, if it
            is rank 0; "R:SIGNAL@N" sends a signal to rank R in its operation N, "R:SIGNAL@N!"
            as soon as the operation is completed.
        number: the number of this process.
    """
    count, made = 0, 0  # operations; variables at the end of the last step
    execute = Group.execute
    plans = [re.fullmatch(r"(\d+):(SIG\w+)@(\d+)(!?)", fault) for fault in faults.split(",")]
    planned = {
        int(plan[3]): (getattr(signal, plan[2]), bool(plan[4]))
        for plan in plans
        if plan and int(plan[1]) == number
    }
    often = [int(fault.partition("@")[2]) for fault in faults.split(",") if "interrupt" in fault]

    def execute_faultily(group: Group, operation):
        nonlocal count, made
        if group._busy:
            return execute(group, operation)
        count += 1
        what, afterwards = planned.get(count, (None, False))
        if what and not afterwards:
            _soon(lambda: os.kill(os.getpid(), what), f"{what.name} in operation {count}")
        # A step may not be lost that makes variables, as the first one does.
        is_step = isinstance(operation, Step)
        repeats = not is_step or made == group.made.count
        if often and repeats and number == 0 and _random.random() < 1 / often[0]:
            _soon(lambda: group._interrupt(group.generation), f"interrupt in {count}")
        if what and afterwards:
            note = group._note
            group._note = lambda *a: (os.kill(os.getpid(), what), note(*a))[1]
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
