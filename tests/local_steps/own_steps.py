"""Models with a training step of their own, and the same by hand: a step sets more than weights."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tests.local_steps import by_hand
from tests.local_steps.by_hand import CASES, CLASSES, FEATURES, Case, loss


class GoesOn(keras.Model):
    """A step that goes on after the update, as a GAN's does: another pass, and a teacher.

    Attributes:
        teacher: follows the weights; frozen.
        follower: has the weights of the last step; trainable, but no gradient moves it.
        frozen: is never set.
        steps: how many steps there were.
        rows: how many samples.
    """

    def __init__(self, layers):
        super().__init__(name="net")
        self.net = keras.Sequential([keras.Input((FEATURES,)), *layers])
        shape = self.net.layers[0].kernel.shape
        self.teacher = keras.Variable(
            np.zeros(shape), dtype="float32", trainable=False, name="teacher"
        )
        self.follower = keras.Variable(np.zeros(shape), dtype="float32", name="follower")
        self.frozen = keras.Variable(
            np.arange(3) / 7, dtype="float32", trainable=False, name="frozen"
        )
        self.steps = keras.Variable(0, trainable=False, dtype="int32", name="steps")
        self.rows = keras.Variable(0, trainable=False, dtype="int64", name="rows")

    def call(self, x, training=False):
        return self.net(x, training=training)

    def train_step(self, data):
        x, y, *_ = data
        logs = super().train_step(data)
        self.goes_on(x)
        return {**logs, "own": loss()(y, self(x, training=False))}

    def goes_on(self, x):
        """What follows an update."""
        self(x + 1.0, training=True)
        kernel = self.net.layers[0].kernel
        self.teacher.assign(0.9 * self.teacher + 0.1 * kernel)
        self.follower.assign(kernel * tf.reduce_mean(x))
        self.steps.assign_add(1)
        self.rows.assign_add(tf.shape(x, tf.int64)[0])


def of(case: Case) -> Case:
    """The case, with the step of `GoesOn`."""

    class OwnCase(type(case)):
        def model(self):
            model = GoesOn(super().model().layers)
            model(np.zeros((1, FEATURES), "float32"))
            return model

    return OwnCase(**{f: getattr(case, f) for f in case.__dataclass_fields__})


class Replicas(by_hand.Replicas):
    """The same by hand; the data of the step follow the update."""

    def step(self, x, y):
        self._part = {}
        super().step(x, y)

    def _gradients_of(self, replica, x, y):
        self._part[replica] = x
        return super()._gradients_of(replica, x, y)

    def _update(self, replica):
        super()._update(replica)
        if replica in self._part:
            self.models[replica].goes_on(tf.constant(self._part[replica]))

    def _meet_weights(self):
        """Without what no gradient moves."""
        followers = [model.follower for model in self.models]
        kept = [v.numpy() for v in followers]
        super()._meet_weights()
        for variable, value in zip(followers, kept):
            variable.assign(value)

    def meet_statistics(self):
        share = self.unsettled / self.unsettled.sum()
        super().meet_statistics()
        followers = [[model.follower] for model in self.models]
        self._set(followers, self._mean(followers, share))


class Reports(keras.Sequential):
    """A step that returns a number without a metric."""

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"own": value}


def trained(case: Case, replicas: int) -> Replicas:
    """The case of `of`, trained by hand."""
    return Replicas(case, replicas).train().finish()


MEAN = of(dataclasses.replace(CASES["BatchNormalization"], rows=65))
OUTER = of(
    by_hand.Case(
        by_hand.sgd(),
        by_hand.normalized,
        ("DiLoCo", {"steps": 2, "outer_learning_rate": 0.7, "outer_momentum": 0.9}),
        rows=65,
    )
)
# The last batch of an epoch has one sample, so the replicas count different numbers of updates.
UNEVEN = dataclasses.replace(CASES["empty parts"], local=("LocalSGD", {"steps": 3}))


def unused() -> list:
    """A layer that the loss does not depend on."""

    class Beside(keras.layers.Layer):
        def build(self, shape):
            self.beside = self.add_weight(shape=(4,), initializer="ones", name="beside")

        def call(self, x):
            return x

    return [Beside(), *by_hand.dense()]


UNUSED = Case(
    by_hand.sgd(momentum=0.9, weight_decay=0.1),
    unused,
    ("LocalSGD", {"steps": 2}),
    rows=64,
    batch=8,
    options={"accumulation_steps": 2},
)


def two_models(strategy: tf.distribute.Strategy) -> tuple[keras.Model, keras.Model]:
    """Two compiled models that share their first layer."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        shared = keras.layers.Dense(16, "tanh", name="shared")
        models = []
        for name in ("first", "second"):
            head = keras.layers.Dense(CLASSES, name=f"{name}_logits")
            model = keras.Sequential([keras.Input((FEATURES,)), shared, head], name=name)
            model.compile(keras.optimizers.Adam(0.01), loss(), metrics=["accuracy"])
            models.append(model)
    return models[0], models[1]


class Stops(keras.callbacks.Callback):
    """Interrupts training after a batch, as Ctrl-C does."""

    decides_in_batches = False

    def __init__(self, batch: int):
        super().__init__()
        self._batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._batch:
            raise KeyboardInterrupt


def interrupted(case: Case, model: keras.Model, batch: int) -> None:
    """Trains until after `batch`."""
    try:
        by_hand.fit_on(case, model, epochs=1, callbacks=[Stops(batch)])
    except KeyboardInterrupt:
        return
    raise AssertionError("not interrupted")


def largest_difference(values, expected) -> float:
    pairs = list(zip(values, expected, strict=True))
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
