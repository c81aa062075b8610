"""What the scenarios have in common: the rank, its model and the state that it is in."""

from __future__ import annotations

import functools
import gc
import hashlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.equivalence.ranks import Ranks
from tests.multi_process.reference import BATCH, BIAS, KERNEL, MOMENTUM, RATE, X, Y
from tfdist import compat


class Here:
    """A rank, as the scenarios see it.

    Args:
        job: how it was started.
        folder: for files.

    Attributes:
        rank: which one it is.
        size: the number of ranks.
        devices: the number of replicas in each.
        strategy: the strategy of most scenarios.
        folder: where the ranks of a scenario write; each is given its own.
    """

    def __init__(self, job: Ranks, folder: pathlib.Path):
        self._job, self._files = job, folder / "files"
        self.folder = self._files
        self.size, self.devices = job.processes, job.devices
        self.strategy = self.make()
        self._linear = functools.cache(functools.partial(linear, self.strategy))
        self.rank = self.strategy.processes.rank

    def make(self, **options: Any) -> tf.distribute.Strategy:
        """A new strategy with these options."""
        return tfdist.Strategy(self._job.launcher, **options)

    def run(self, name: str, function: Callable[[Here], dict]) -> dict:
        """What `function` finds out, in a folder of its own."""
        self.folder = self._files / name
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return function(self)
        finally:
            keras.config.set_dtype_policy("float32")

    @property
    def own(self) -> pathlib.Path:
        """A folder that no other rank uses."""
        folder = self.folder / str(self.rank)
        folder.mkdir(exist_ok=True)
        return folder

    def model(self, **options: Any) -> keras.Model:
        """The linear model of `reference.py` at its start; `options` go to `compile`.

        To save time, all scenarios that ask for the same share it.
        """
        # Many iterators that wait to be destroyed block each other's threads: TensorFlow then takes
        # seconds for each, in which a rank seems to hang.
        gc.collect()
        model = self._linear(**options)
        restart(model)
        return model

    def meet(self) -> None:
        """Waits for the other ranks."""
        self.strategy.processes.all_gather([0])


def linear(strategy: tf.distribute.Strategy, **options: Any) -> keras.Model:
    """The model of `reference.py`; `options` go to `compile`."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        model.compile(optimizer, "mse", metrics=["mae"], **options)
        model.optimizer.build(model.trainable_variables)
    restart(model)
    return model


def restart(model: keras.Model) -> None:
    """Gives a linear model the weights and the optimizer that it started with."""
    model.set_weights([KERNEL, BIAS])
    for variable in model.optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    model.optimizer.learning_rate = RATE
    model.stop_training = False
    compat.set_initial_epoch(model, 0)  # BackupAndRestore leaves it


def state(model: keras.Model) -> dict:
    """Weights and optimizer, and a digest of all of their bits on each local replica."""
    strategy, optimizer = model.distribute_strategy, model.optimizer
    variables = {id(v.value): v.value for v in [*model.variables, *optimizer.variables]}
    common = [
        strategy.experimental_local_results(variable)
        for variable in variables.values()
        if variable.synchronization != tf.VariableSynchronization.ON_READ
    ]
    replicas = len(strategy.extended.worker_devices)
    bits = [hashlib.sha256(usedforsecurity=False) for _ in range(replicas)]
    for parts in common:
        for digest, part in zip(bits, parts):
            digest.update(part.numpy().tobytes())
    velocity = [v.numpy().tolist() for v in optimizer.variables if "momentum" in v.path]
    return {
        "bits": [digest.hexdigest() for digest in bits],
        "weights": [w.tolist() for w in model.get_weights()],
        "velocity": velocity,
        "iterations": int(optimizer.iterations.numpy()),
        "rate": float(optimizer.learning_rate.numpy()),
    }


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback, **options: Any) -> dict:
    """Trains a linear model in the given order; returns the history."""
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    return floats(model.fit(X, Y, callbacks=list(callbacks), **options).history)


def floats(logs: Any) -> Any:
    """Logs or a history without NumPy's numbers."""
    return tf.nest.map_structure(float, dict(logs))


def wait_for(path: pathlib.Path) -> None:
    """Waits until another rank has made a file."""
    while not path.exists():
        time.sleep(0.01)


def error_of(function: Callable, *args: Any, **kwargs: Any) -> str:
    """The error of a call, with its type; "" for none."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
