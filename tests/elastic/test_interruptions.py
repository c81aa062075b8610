"""Ranks of Horovod that are interrupted are free at once, and survive groups that do not form."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest

from tests.elastic.test_faults import ROOT
from tfdist.cluster.machines import Location
from tfdist.strategies.horovod.backend import is_installed
from tfdist.strategies.horovod.launch import of_group

RANKS, GROUPS = 3, 40
DEADLINE = 300  # seconds: a rank that waits for ever is killed


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not is_installed(), reason="make horovod"),
]


@contextlib.contextmanager
def started(length, limit):
    """Ranks that add up so many numbers; `limit` is Gloo's, in seconds."""
    command = [sys.executable, "-m", "tests.elastic.interrupted", str(length)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environ = os.environ | {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(limit)}
    ranks = [
        subprocess.Popen(command, env=environ, cwd=ROOT, text=True, **pipes) for _ in range(RANKS)
    ]
    watchdog = threading.Timer(DEADLINE, end, [ranks])
    watchdog.start()
    try:
        yield ranks
    finally:
        watchdog.cancel()
        end(ranks)


def end(ranks):
    """Ends the ranks."""
    for rank in ranks:
        rank.kill()
        rank.wait()


def tell(ranks, lines, answer):
    """Tells each rank a line. Waits for the answer of all."""
    for rank, line in zip(ranks, lines):
        rank.stdin.write(f"{line}\n")
        rank.stdin.flush()
    for rank in ranks:
        said = iter(rank.stdout.readline, "")
        for line in said:
            if line == f"{answer}\n":
                break
        else:
            raise AssertionError(f"a rank ended with status {rank.wait()}")


def group_of(count):
    """The variables of so many ranks of this machine."""
    return of_group("127.0.0.1", [Location(0, "lo")] * count)


def work(ranks):
    """Forms a group of ranks, which add up. Interrupts them; returns how long that takes."""
    with group_of(len(ranks)) as variables:
        tell(ranks, [json.dumps(own) for own in variables], "formed")
        time.sleep(0.3 * random.random())
        began = time.monotonic()
        tell(ranks, ["interrupt"] * len(ranks), "free")
        return time.monotonic() - began


@pytest.mark.parametrize("length", [1000, 1_000_000])
def test_nobody_waits_for_a_time_limit(length):
    random.seed(0)
    limit = 60
    with started(length, limit) as ranks:
        for _ in range(GROUPS):
            assert work(ranks) < limit


def test_a_group_that_cannot_be_formed_ends_no_process():
    with started(1000, limit=3) as ranks:
        work(ranks)
        with group_of(RANKS) as variables:
            tell(ranks[:-1], [json.dumps(own) for own in variables][:-1], "not formed")
        work(ranks[:-1])
