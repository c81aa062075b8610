"""Keras 3 without tfdist, in the three ways that it is told to run on several devices.

They train the same features as tfdist's columns, in processes of their own, because they may crash
or hang.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer

import tfdist
from tests.equivalence import harness
from tests.equivalence.results import Result
from tfdist.data import batches, shards

_REPLICAS = 2


@dataclasses.dataclass(frozen=True)
class Peer:
    """A column of Keras alone.

    Attributes:
        name: what processes look it up by.
        title: the head of the column.
        launcher: what connects the processes.
        processes: their number.
        complete: whether all features are trained, or a sample.
        fit: builds and trains the model of a feature.
    """

    name: str
    title: str
    launcher: str
    processes: int
    complete: bool
    fit: Callable[[harness.Feature], harness.Outcome]

    def train(self, feature: harness.Feature) -> Result:
        """Trains `feature`; only the weights are compared between the ranks."""
        try:
            outcome = self.fit(feature)
            return Result(outcome, [(str(i), [w]) for i, w in enumerate(outcome.weights)])
        finally:
            harness.forget()


def _mirrored(feature: harness.Feature) -> harness.Outcome:
    devices = tfdist.testing.virtual_devices(_REPLICAS)
    return _in_scope(feature, tf.distribute.MirroredStrategy(devices))


def _multi_worker(feature: harness.Feature) -> harness.Outcome:
    return _in_scope(feature, _multi_worker_strategy())


@functools.cache
def _multi_worker_strategy() -> tf.distribute.Strategy:
    return tf.distribute.MultiWorkerMirroredStrategy()


def _in_scope(feature: harness.Feature, strategy: tf.distribute.Strategy) -> harness.Outcome:
    """The script of tf.distribute's guide."""
    keras.utils.set_random_seed(harness.SEED)
    with strategy.scope():
        model = feature.build()
    steps = feature.options.get("accumulation_steps")
    if steps:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        optimizer.gradient_accumulation_steps = steps
    return feature.fit(model)


def _horovod(feature: harness.Feature) -> harness.Outcome:
    """The script of Horovod's guide, without its callbacks, which fail at once.

    Each rank is given its part of every batch. The initial weights are equal by their seed.
    """
    _divide_training_data()
    keras.utils.set_random_seed(harness.SEED)
    return feature.fit(feature.build())


@functools.cache
def _divide_training_data() -> None:
    """Wraps the optimizers, and lets `fit` and `train_on_batch` see the rank's part of batches."""
    import horovod.tensorflow.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    trainer = keras_trainer.TensorFlowTrainer
    compile_, fit, train_on_batch = trainer.compile, trainer.fit, trainer.train_on_batch
    iterate = keras_trainer.TFEpochIterator.__init__
    fits: list[keras.Model] = []

    def compile_distributed(self: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any):
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.get(optimizer))
        else:
            optimizer.inner_optimizer = hvd.DistributedOptimizer(optimizer.inner_optimizer)
        return compile_(self, optimizer, *args, **kwargs)

    def fit_on_own_part(self: Any, *args: Any, **kwargs: Any) -> Any:
        fits.append(self)
        return fit(self, *args, **kwargs)

    def iterate_over_own_part(self: Any, *args: Any, **kwargs: Any) -> None:
        iterate(self, *args, **kwargs)
        if fits:  # the first data set of a fit is that to train on
            fits.clear()
            dataset = self._distributed_dataset
            self._distributed_dataset = shards.of_global_batches(dataset, rank, 1, size)

    def train_on_own_part(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tf.nest.map_structure(tf.convert_to_tensor, (args, kwargs))
        parts = batches.part((args, kwargs), len(args[0]), rank, size)
        return train_on_batch(self, *parts[0], **parts[1])

    trainer.compile = compile_distributed
    trainer.fit = fit_on_own_part
    trainer.train_on_batch = train_on_own_part
    keras_trainer.TFEpochIterator.__init__ = iterate_over_own_part


PEERS = (
    Peer("keras-mirrored", "Keras + Mirrored", "multi_worker", 1, True, _mirrored),
    Peer("keras-multi_worker", "Keras + MultiWorker", "multi_worker", 2, False, _multi_worker),
    Peer("keras-horovod", "Keras + Horovod", "horovod", 2, True, _horovod),
)
BY_NAME = {peer.name: peer for peer in PEERS}
