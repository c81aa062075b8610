"""What a process measures of its own steps, and what it runs on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import resource
import socket
import sys
import time
from importlib import metadata
from typing import NamedTuple, Protocol

import keras
import tensorflow as tf

from tfdist.control_groups import text_of
from tfdist.options import Options
from tfdist.step.parts import StepParts, Sums
from tfdist.watch.numbers import RankNumbers

_PACKAGES = ("tfdist", "tensorflow", "keras", "numpy", "horovod")
_KIBIBYTE = 1024
_NOTHING = Sums(0.0, 0.0, 0.0, 0.0, 0.0)


class Unwrapping(Protocol):
    """A strategy of tfdist."""

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""

    def unwrap(self, model: keras.Model) -> keras.optimizers.Optimizer | None:
        """The optimizer that `model` was compiled with."""


class _Calls(NamedTuple):
    """Keras' calls of the step in an epoch, so far.

    Attributes:
        steps: how many steps these had at most.
        ended: when the last one has ended.
        seconds: inside of all but the first one.
    """

    steps: int
    ended: float
    seconds: float


class Measuring:
    """Measures the steps of this process from outside, and reads what they have measured inside.

    Args:
        parts: sums up where the time of steps goes; None where the steps cannot tell.
        steps_per_call: the most steps of a call. The last call of an epoch may make fewer, and only
            `parts` knows how many: without it that call is left out.
    """

    def __init__(self, parts: StepParts | None, steps_per_call: int = 1) -> None:
        self._parts = parts
        self._leaves_out_last = parts is None and steps_per_call > 1
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begins anew."""
        self._first: int | None = None
        self._called = self._began = time.perf_counter()
        self._calls = self._calls_before = _Calls(0, self._began, 0.0)
        self._before = self._sums()
        self._network = _network_bytes()

    def _sums(self) -> Sums:
        return _NOTHING if self._parts is None else self._parts.read()

    def begin_step(self) -> None:
        """Notes that Keras calls the step."""
        self._called = time.perf_counter()

    def end_step(self, batch: int) -> None:
        """Notes that the call has returned; the first one is left out, as it may be traced.

        Args:
            batch: the number of the last step of the call in its epoch.
        """
        now, seconds = time.perf_counter(), self._calls.seconds
        if self._first is None:
            self._first, self._began, self._before = batch + 1, now, self._sums()
        else:
            seconds += now - self._called
        # There were data for this call, so the calls before have made all of their steps.
        self._calls_before, self._calls = self._calls, _Calls(batch + 1, now, seconds)

    def numbers(self) -> RankNumbers:
        """What was measured since the epoch began."""
        calls = self._calls_before if self._leaves_out_last else self._calls
        sums = Sums(*(now - before for now, before in zip(self._sums(), self._before)))
        counted = max(0, calls.steps - (self._first or 0))
        steps = counted if self._parts is None else round(sums.steps)
        network = _network_bytes()
        found = RankNumbers(
            host=socket.gethostname()[:64],
            steps=steps,
            seconds=calls.ended - self._began,
            calls=calls.seconds,
            memory=resident_bytes(),
            peak_memory=_KIBIBYTE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            device_memory=_device_bytes(),
            sent=None if network is None else network[1] - (self._network or network)[1],
            received=None if network is None else network[0] - (self._network or network)[0],
        )
        if self._parts is None or not steps:
            return found
        return dataclasses.replace(found, **{**sums._asdict(), "steps": steps})


def resident_bytes() -> int:
    """The main memory that this process uses, in bytes; 0 where Linux' /proc is missing."""
    pages = text_of("/proc/self/statm").split()
    return int(pages[1]) * resource.getpagesize() if pages else 0


def _device_bytes() -> int | None:
    """The most bytes that this process has used of the memory of its GPUs; None without GPUs."""
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return None
    names = [device.name.rpartition("device:")[2] for device in devices]
    return sum(tf.config.experimental.get_memory_info(name)["peak"] for name in names)


def _network_bytes() -> tuple[int, int] | None:
    """Bytes that have come in and gone out over all network interfaces; None if not known."""
    lines = text_of("/proc/self/net/dev").splitlines()[2:]
    columns = [line.partition(":")[2].split() for line in lines]
    if not columns:
        return None
    return sum(int(row[0]) for row in columns), sum(int(row[8]) for row in columns)


def environment_of(strategy: Unwrapping, model: keras.Model) -> dict[str, str]:
    """What a run of `model` has for its environment, by name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    named = [device.name.partition("device:")[2] for device in tf.config.list_logical_devices()]
    devices = dict.fromkeys(named)  # with those of other ranks
    versions = []
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    size = f"{model.count_params():,} parameters" if model.built else "not built"
    return {
        "strategy": f"{type(strategy).__name__}, {strategy.num_replicas_in_sync} replicas",
        "options": _chosen(getattr(strategy, "options", None)),
        "model": f"{model.name}, {size}, {type(strategy.unwrap(model)).__name__}",
        "versions": ", ".join(versions),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "first rank": f"{socket.gethostname()}, {cores} cores, devices {', '.join(devices)}",
        "script": sys.argv[0],
    }


def _chosen(options: Options | None) -> str:
    """The options that are not what they are by default."""
    if options is None:
        return "none"
    pairs = [(field.name, field.default) for field in dataclasses.fields(options)]
    chosen = {name: value for name, usual in pairs if (value := getattr(options, name)) != usual}
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "all by default"
