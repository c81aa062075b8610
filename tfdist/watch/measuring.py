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
from typing import Protocol

import keras
import tensorflow as tf

from tfdist.control_groups import text_of
from tfdist.options import Options
from tfdist.step.parts import StepParts, Sums
from tfdist.watch.numbers import RankNumbers

_PACKAGES = ("tfdist", "tensorflow", "keras", "numpy", "horovod")
_KIBIBYTE = 1024


class Unwrapping(Protocol):
    """A strategy of tfdist."""

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""

    def unwrap(self, model: keras.Model) -> keras.optimizers.Optimizer | None:
        """The optimizer that `model` was compiled with."""


class Measuring:
    """Measures the steps of this process from outside, and reads what they have measured inside.

    Args:
        parts: sums up where the time of steps goes; None where the steps cannot tell.
    """

    def __init__(self, parts: StepParts | None) -> None:
        self._parts = parts
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begins anew."""
        self._first: int | None = None
        self._last = 0
        self._called = self._began = self._ended = time.perf_counter()
        self._calls = 0.0
        self._before = Sums(0.0, 0.0, 0.0, 0.0)
        self._network = _network_bytes()

    def begin_step(self) -> None:
        """Notes that Keras calls the step."""
        self._called = time.perf_counter()

    def end_step(self, batch: int) -> None:
        """Notes that the call has returned; the first one is left out, as it may be traced.

        Args:
            batch: the number of the last step of the call in its epoch.
        """
        self._last, self._ended = batch, time.perf_counter()
        if self._first is None:
            self._first, self._began = batch, self._ended
            if self._parts is not None:
                self._before = self._parts.read()
        else:
            self._calls += self._ended - self._called

    def numbers(self) -> RankNumbers:
        """What was measured since the epoch began."""
        steps = 0 if self._first is None else self._last - self._first
        network = _network_bytes()
        found = RankNumbers(
            host=socket.gethostname()[:64],
            steps=steps,
            seconds=self._ended - self._began,
            calls=self._calls,
            memory=resident_bytes(),
            peak_memory=_KIBIBYTE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            device_memory=_device_bytes(),
            sent=None if network is None else network[1] - (self._network or network)[1],
            received=None if network is None else network[0] - (self._network or network)[0],
        )
        if self._parts is None or not steps:
            return found
        sums = [now - before for now, before in zip(self._parts.read(), self._before)]
        values = dict(zip(Sums._fields, sums))
        return RankNumbers(**{**vars(found), **values})


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
