"""Loops with several kinds of steps, each of which trains other weights, and the same by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist

FEATURES, BATCH, STEPS = 3, 3, 3  # a batch has two samples for the first replica, one for the other
_PARTS, _SHARES = (slice(0, 2), slice(2, 3)), (2 / 3, 1 / 3)
_RATE = 0.1

# What trains the weights of each kind of step. Both optimizers are built for all weights.
OWNERS = {"a": "first", "b": "first", "c": "second"}

# The rounds of the first optimizer: one before any "b", two with some "b" that end with an "a", one
# that ends with a "b", and one that is not complete.
ORDER = list("aacaabcabbacaabca")


class Net(keras.Model):
    """A layer and four heads. Each kind of step trains a head; nobody trains the last one.

    Attributes:
        teacher: follows a weight; not trainable.
    """

    def __init__(self):
        super().__init__()
        unit, zeros = keras.constraints.UnitNorm(), np.zeros((FEATURES, 4), "float32")
        self.trunk = keras.layers.Dense(4, "tanh")
        self.heads = {n: keras.layers.Dense(1, kernel_constraint=unit) for n in "abcd"}
        self.teacher = keras.Variable(zeros, trainable=False, name="teacher")
        self(np.zeros((1, FEATURES), "float32"))

    def call(self, x):
        return {name: head(self.trunk(x)) for name, head in self.heads.items()}

    def trained_by(self, kind: str) -> list[keras.Variable]:
        """The weights that a step of this kind trains."""
        layers = [self.heads[kind]] if kind == "c" else [self.trunk, self.heads[kind]]
        return [v for layer in layers for v in layer.trainable_variables]

    def train(self, kinds: str, x: Any, y: Any, applies: Mapping[str, Callable]) -> tf.Tensor:
        """One step: updates of some kinds, one after the other. Returns the last one's loss."""
        for kind in kinds:
            variables = self.trained_by(kind)
            with tf.GradientTape() as tape:
                value = keras.losses.MeanSquaredError()(y, self.heads[kind](self.trunk(x)))
            applies[kind](tape.gradient(value, variables), variables)
        self.teacher.assign(0.9 * self.teacher + 0.1 * self.trunk.kernel)
        return value


def made() -> Net:
    keras.utils.set_random_seed(1)
    return Net()


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(steps * BATCH, FEATURES)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


class Loop:
    """Two replicas, and a marked step for each kind.

    Args:
        local: the choice for `local`.
        owners: for each kind of step the name of its optimizer.
        eager: whether there are no functions.
        built: whether optimizers are built before the first step, for all weights.
        **options: further ones of the strategy.
    """

    def __init__(
        self,
        local: Any,
        owners: Mapping[str, str] = OWNERS,
        eager: bool = False,
        built: bool = True,
        **options: Any,
    ):
        self.strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local, **options)
        with self.strategy.scope():
            self.model = made()
            self.optimizers = {}
            for name in sorted(set(owners.values())):
                optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(_RATE))
                if built:
                    optimizer.build(self.model.trainable_variables)
                self.optimizers[name] = optimizer
        self._owners, self._eager = dict(owners), eager
        self._functions: dict[str, Callable] = {}

    def _function(self, kinds: str) -> Callable:
        applies = {kind: self.optimizers[self._owners[kind]].apply for kind in kinds}
        model, strategy = self.model, self.strategy

        def step(x, y):
            model.train(kinds, x, y, applies)

        def run(x, y):
            strategy.run(tfdist.local_step(step, model), args=(x, y))

        return run if self._eager else tf.function(run, autograph=False)

    def train(self, order: Sequence[str]) -> Loop:
        """One step for each of `order`; rounds that are not complete stay so."""
        batches = tf.data.Dataset.from_tensor_slices(data(len(order))).batch(BATCH)
        for kinds, batch in zip(order, self.strategy.experimental_distribute_dataset(batches)):
            if kinds not in self._functions:
                self._functions[kinds] = self._function(kinds)
            self._functions[kinds](*batch)
        return self

    def finish(self) -> Net:
        next(iter(self.optimizers.values())).finish_round()
        return self.model

    def forget(self, name: str) -> None:
        """Deletes an optimizer, and the functions of its steps."""
        del self.optimizers[name]
        self._functions = {
            kinds: function
            for kinds, function in self._functions.items()
            if all(self._owners[kind] != name for kind in kinds)
        }


class _Round:
    """What an optimizer of the same by hand has of its round."""

    def __init__(self, models: list[Net], local: Any):
        self._models = models
        self._local = local
        self.optimizers = [keras.optimizers.SGD(_RATE) for _ in models]
        for model, optimizer in zip(models, self.optimizers):
            optimizer.build(model.trainable_variables)
        self._momentum = [np.zeros(v.shape, "float32") for v in models[0].trainable_variables]
        self._anchor: list[np.ndarray] = []
        self._trained: set[int] = set()
        self._touched: set[int] = set()
        self.updates = 0

    def begin(self) -> None:
        if not self.updates:
            self._anchor = [v.numpy() for v in self._models[0].trainable_variables]

    def apply(self, replica: int, gradients: list, variables: list) -> None:
        self.optimizers[replica].apply(gradients, variables)
        ids = {id(v) for v in variables}
        every = self._models[replica].trainable_variables
        self._touched |= {place for place, v in enumerate(every) if id(v) in ids}

    def meet(self) -> None:
        self._trained |= self._touched
        every = [model.trainable_variables for model in self._models]
        for place in sorted(self._trained):
            same = [variables[place] for variables in every]
            new = _mean(same)
            if isinstance(self._local, tfdist.DiLoCo) and place in self._touched:
                local, moved = self._local, self._anchor[place] - new
                self._momentum[place] = local.outer_decay * self._momentum[place] + moved
                step = moved + local.outer_decay * self._momentum[place]
                new = self._anchor[place] - local.outer_rate * step
            for variable in same:
                variable.assign(new)
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable.value))
        teachers = [model.teacher for model in self._models]
        value = _mean(teachers)
        for teacher in teachers:
            teacher.assign(value)
        self._touched, self.updates = set(), 0


def _mean(same: list[keras.Variable]) -> np.ndarray:
    values = [share * v.numpy().astype("float64") for share, v in zip(_SHARES, same)]
    return sum(values).astype("float32")


def by_hand(order: Sequence[str], local: Any) -> Net:
    """The model of the first replica after all rounds."""
    models = [made(), made()]
    rounds = {name: _Round(models, local) for name in set(OWNERS.values())}
    x, y = data(len(order))
    for number, kinds in enumerate(order):
        owners = [OWNERS[kind] for kind in kinds]
        for name in owners:
            rounds[name].begin()
        for replica, (model, part) in enumerate(zip(models, _PARTS)):
            own = slice(number * BATCH + part.start, number * BATCH + part.stop)

            def apply(name, replica=replica):
                return lambda g, v: rounds[name].apply(replica, g, v)

            applies = {kind: apply(OWNERS[kind]) for kind in kinds}
            model.train(kinds, tf.constant(x[own]), tf.constant(y[own]), applies)
        for name in owners:
            rounds[name].updates += 1
            if rounds[name].updates == STEPS:
                rounds[name].meet()
    for own in rounds.values():
        if own.updates:
            own.meet()
    return models[0]
