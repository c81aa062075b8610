"""What each rank of `tfdist test` does, in the order in which it does it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdist.checkup import drill, features, judging
from tfdist.checkup.equality import compare
from tfdist.checkup.links import LinkTest
from tfdist.checkup.machine import Facts, facts_of, hosts_of
from tfdist.checkup.report import Report
from tfdist.checkup.sums import compute_seconds, sums_of
from tfdist.cluster import choose_strategy
from tfdist.processes import digest
from tfdist.strategies.factory import Strategy
from tfdist.strategies.horovod.backend import is_installed
from tfdist.strategies.multi_process import MultiProcessStrategy


def examine(chosen: str | None, with_faults: bool, say: Callable[[str], None]) -> Report:
    """Measures, trains and judges. All processes of the job call it.

    Args:
        chosen: the strategy's name, "multi_worker" or "horovod"; None for what fits the launcher.
        with_faults: whether to kill a rank of a small elastic job on the machine of rank 0.
        say: told what rank 0 does next, in a line.

    Returns:
        The report, with the same measurements in all processes.

    Raises:
        ValueError, ImportError, OSError: when the ranks do not come together.
    """
    begun = time.monotonic()
    # One device's results are exact only if both compute in full precision.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    name = chosen or choose_strategy(os.environ, 1, is_installed())[0]
    strategy = Strategy(name)
    with strategy.processes.naming_lost_ranks():
        report = _examined(strategy, name, with_faults, say)
    report.seconds = time.monotonic() - begun
    return report


def _examined(
    strategy: MultiProcessStrategy, name: str, with_faults: bool, say: Callable[[str], None]
) -> Report:
    processes = strategy.processes
    tell = say if processes.is_chief else _nothing
    facts = _facts_of_all(strategy)
    report = Report(name, facts, hosts_of([fact.place for fact in facts]))
    tell(f"{processes.size} ranks on {len(set(report.hosts))} host(s), strategy {name}")
    report.compute_seconds = compute_seconds(strategy)
    tell("measuring each pair of ranks")
    report.links, report.clocks = LinkTest(strategy.engine, report.hosts).measure()
    tell("measuring all-reduces")
    report.sums, left_out = sums_of(strategy, report.links, facts)
    tell(f"training with {len(features.ALL)} features, on all ranks and on one device")
    report.equalities = compare(strategy, name, features.ALL)
    if with_faults:
        tell("killing a rank of a small elastic job")
        report.drill = drill.run(name) if processes.is_chief else None
    processes.all_gather([0])  # the others wait for rank 0, which serves them
    report.notes = judging.notes(report, left_out)
    report.problems = judging.problems(report)
    return report


def _facts_of_all(strategy: MultiProcessStrategy) -> list[Facts]:
    gpus = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    processes = strategy.processes
    device = strategy.extended.worker_devices[0]
    own = facts_of(processes.name(processes.rank), versions(), gpus, device)
    texts = processes.all_gather_texts(json.dumps(dataclasses.asdict(own)))
    return [Facts(**json.loads(text)) for text in texts]


def versions() -> dict[str, str | None]:
    """What must be equal in all ranks.

    Example:

    >>> from tfdist.checkup.rank import versions
    >>> list(versions())
    ['tfdist', 'Keras', 'TensorFlow', 'Python', 'NumPy', 'Horovod']
    """
    found = {**digest.of_versions(), "Python": platform.python_version()}
    return {**found, "NumPy": np.__version__, "Horovod": _installed("horovod")}


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nothing(line: str) -> None:
    """Other ranks than rank 0 say nothing."""
    del line
