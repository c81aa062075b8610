"""Local steps by hand: each replica is a Keras model of its own, on one device, without tfdist."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

CLASSES, FEATURES = 3, 8


def _data(rows):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, FEATURES)).astype("float32")
    return x, (x @ random.normal(size=(FEATURES, CLASSES))).argmax(1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training with local steps.

    Attributes:
        optimizer: makes the optimizer.
        layers: makes the layers between input and the logits.
        local: the name and the arguments of the choice.
        rows: the number of samples.
        batch: the size of the global batch.
        options: other options of the strategy.
        compiled: more arguments of `compile`.
        spike: the rows whose features are so large that their gradients overflow.
        unknown: whether the number of batches is unknown.
        tolerance: of the weights. Half precision turns the smallest difference into one of 5e-4 of
            a number.
    """

    optimizer: Callable[[], keras.optimizers.Optimizer]
    layers: Callable[[], list]
    local: tuple[str, dict]
    rows: int = 70
    batch: int = 16
    epochs: int = 3
    options: dict = dataclasses.field(default_factory=dict)
    compiled: dict = dataclasses.field(default_factory=dict)
    spike: tuple[int, ...] = ()
    unknown: bool = False
    tolerance: float = 1e-6

    def data(self):
        x, y = _data(self.rows)
        x[[*self.spike]] = 1e5  # infinite in half precision
        return x, y

    def model(self) -> keras.Model:
        keras.utils.set_random_seed(5)
        logits = keras.layers.Dense(CLASSES, dtype="float32", name="logits")
        return keras.Sequential([keras.Input((FEATURES,)), *self.layers(), logits], name="net")


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense() -> list:
    return [keras.layers.Dense(16, "tanh", name="hidden")]


def normalized() -> list:
    return [*dense(), keras.layers.BatchNormalization(momentum=0.8, name="normalized")]


def constrained() -> list:
    limit = keras.constraints.MaxNorm(0.9)
    return [keras.layers.Dense(16, "tanh", kernel_constraint=limit, kernel_regularizer="l2")]


def projected() -> list:
    """Constraints that neither a mean nor an outer step obeys by itself."""
    unit, positive = keras.constraints.UnitNorm(), keras.constraints.NonNeg()
    first = keras.layers.Dense(16, "tanh", kernel_constraint=unit)
    return [first, keras.layers.Dense(8, "tanh", kernel_constraint=positive)]


def embedded() -> list:
    to_ids = keras.layers.Lambda(lambda x: tf.cast(tf.clip_by_value(x * 2 + 5, 0, 9), tf.int32))
    return [to_ids, keras.layers.Embedding(10, 4), keras.layers.Flatten()]


def half() -> list:
    return [keras.layers.Dense(16, "tanh", dtype="mixed_float16", name="hidden")]


def scaled(rate=0.1) -> keras.optimizers.Optimizer:
    inner = keras.optimizers.SGD(rate, momentum=0.9)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=4)


def sgd(**options) -> Callable:
    return lambda: keras.optimizers.SGD(0.1, **options)


def of(name: str, **options) -> Callable:
    # With the usual epsilon of 1e-7, Adam and its like divide rounding errors by rounding errors.
    if name not in ("Ftrl", "Lion", "Adafactor"):
        options.setdefault("epsilon", 1e-3)
    return lambda: getattr(keras.optimizers, name)(**{"learning_rate": 0.01, **options})


def decaying() -> keras.optimizers.Optimizer:
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    return keras.optimizers.Adam(rate, epsilon=1e-3)


def several() -> keras.optimizers.Optimizer:
    kernels = {".*/kernel": keras.optimizers.Adam(0.01, epsilon=1e-3)}
    others = keras.optimizers.SGD(0.1, momentum=0.9)
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(others, kernels))


def _local(steps: int, **more: Any) -> tuple[str, dict]:
    return "DiLoCo" if more else "LocalSGD", {"steps": steps, **more}


_EMPTY = {"rows": 65}  # of the last batch's one sample, only the first replica gets any
_OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
_OPTIMIZERS = {
    "sgd": sgd(),
    "momentum": sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": of("Adam"),
    "adam, amsgrad": of("Adam", amsgrad=True),
    "adamw": of("AdamW", clipnorm=0.1),
    "nadam": of("Nadam", global_clipnorm=0.5),
    "adagrad": of("Adagrad", clipvalue=0.05),
    "rmsprop": of("RMSprop", centered=True, momentum=0.5),
    "adadelta": of("Adadelta", learning_rate=1.0),
    "adamax": of("Adamax"),
    "ftrl": of("Ftrl"),
    "lion": of("Lion"),
    "lamb": of("Lamb"),
    "adafactor": of("Adafactor", epsilon_1=1e-3),
    "muon": of("Muon", exclude_layers=["logits"]),
}
if hasattr(keras.optimizers, "MultiOptimizer"):  # not in every Keras
    _OPTIMIZERS["several"] = several
CASES = {
    **{name: Case(make, dense, _local(3)) for name, make in _OPTIMIZERS.items()},
    "schedule": Case(decaying, dense, _local(3), **_EMPTY),
    "empty parts": Case(of("Adam"), dense, _local(4), **_EMPTY),
    "empty parts, a long round": Case(sgd(momentum=0.9), dense, _local(100), **_EMPTY),
    "uneven parts": Case(sgd(momentum=0.9), dense, _local(4), rows=67),
    "unknown length": Case(of("Adam"), dense, _local(3), rows=67, unknown=True),
    "accumulation": Case(
        of("Adam"), dense, _local(2), rows=61, batch=8, options={"accumulation_steps": 3}
    ),
    "accumulation, empty parts": Case(
        of("Adam"), dense, _local(2), rows=65, batch=8, options={"accumulation_steps": 2}
    ),
    "several steps per execution": Case(
        of("Adam"), dense, _local(4), rows=67, batch=8, compiled={"steps_per_execution": 3}
    ),
    "eager": Case(sgd(momentum=0.9), dense, _local(3), **_EMPTY, compiled={"run_eagerly": True}),
    # Of parts of two samples BatchNormalization makes signs, which differ by more than rounding.
    "BatchNormalization": Case(sgd(), normalized, _local(3), rows=77, epochs=2),
    "BatchNormalization, accumulation": Case(
        sgd(), normalized, _local(2), rows=64, batch=8, options={"accumulation_steps": 2}
    ),
    "BatchNormalization, waiting": Case(
        sgd(), normalized, _local(2), rows=67, batch=8, options={"accumulation_steps": 2}
    ),
    "constraint and regularizer": Case(sgd(), constrained, _local(3), rows=67),
    "constraints, mean": Case(sgd(), projected, _local(3), rows=67),
    "constraints, outer step": Case(sgd(), projected, _local(3, **_OUTER), rows=67),
    "embedding": Case(sgd(), embedded, _local(3), rows=67),
    "ema": Case(sgd(use_ema=True, ema_momentum=0.8), dense, _local(3), **_EMPTY),
    "ema, overwritten": Case(
        sgd(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2), dense, _local(3), rows=67
    ),
    "loss scale": Case(scaled, half, _local(3), rows=67, tolerance=1e-4),
    "overflow on one replica": Case(scaled, half, _local(3), rows=65, spike=(30,), tolerance=1e-4),
    "overflow, accumulation": Case(
        scaled,
        half,
        _local(2),
        batch=8,
        spike=(30,),
        options={"accumulation_steps": 3},
        tolerance=1e-4,
    ),
    "overflow on all replicas": Case(
        scaled, half, _local(1, **_OUTER), rows=67, epochs=2, spike=(18, 30), tolerance=1e-4
    ),
    "outer momentum": Case(of("Adam"), dense, _local(3, **_OUTER), **_EMPTY),
    "outer rate": Case(
        sgd(momentum=0.9), dense, _local(4, outer_learning_rate=0.5, outer_momentum=0.0), rows=67
    ),
    "outer momentum, one step": Case(sgd(), dense, _local(1, **_OUTER), rows=67),
    "outer momentum, everything": Case(
        of("Adam", use_ema=True, ema_momentum=0.8),
        normalized,
        _local(2, **_OUTER),
        rows=65,
        batch=8,
        options={"accumulation_steps": 2},
        compiled={"steps_per_execution": 3},
    ),
}


class Replicas:
    """R replicas of a case, each a model with an optimizer.

    Args:
        case: the case.
        replicas: R.
    """

    def __init__(self, case: Case, replicas: int):
        self.case = case
        self.models = [case.model() for _ in range(replicas)]
        self.optimizers = [case.optimizer() for _ in range(replicas)]
        for model, optimizer in zip(self.models, self.optimizers):
            optimizer.build(model.trainable_variables)
        self._gradients = [self._differentiated(r) for r in range(replicas)]
        self.samples = np.zeros(replicas)
        self.waiting: list[list] = [[] for _ in range(replicas)]
        self.seen = np.zeros(replicas)
        self.unsettled = np.zeros(replicas)  # samples since the statistics were averaged
        self.batches = self.updates = self._synchronous = 0
        self.losses: list[float] = []  # of the global batches
        self.anchor = self.weights()
        self.momentum = [np.zeros_like(w) for w in self.anchor]

    def weights(self) -> list[np.ndarray]:
        return [v.numpy() for v in self.models[0].trainable_variables]

    def train(self, epochs: int | None = None, synchronous: int = 0) -> Replicas:
        """Trains.

        Args:
            epochs: how many; None for those of the case.
            synchronous: how many updates are synchronous before the first round.
        """
        self._synchronous = synchronous
        x, y = self.case.data()
        for _ in range(self.case.epochs if epochs is None else epochs):
            for start in range(0, len(x), self.case.batch):
                stop = start + self.case.batch
                self.step(x[start:stop], y[start:stop])
            for optimizer in self.optimizers if self.case.unknown else ():
                optimizer.iterations.assign_add(1)  # Keras counts where it finds the end of data
            if self.updates:
                self.meet()
            elif self.unsettled.any():
                self.meet_statistics()
        return self

    def finish(self) -> Replicas:
        """Ends training as `fit` does."""
        for model, optimizer in zip(self.models, self.optimizers):
            optimizer.finalize_variable_values(model.trainable_variables)
        return self

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        is_synchronous = self.batches < self._synchronous
        self.losses.append(0.0)
        accumulates = self.case.options.get("accumulation_steps", 1)
        for replica, part in enumerate(self.parts(len(x))):
            if len(x[part]):
                value = self._gradients_of(replica, x[part], y[part])
                self.losses[-1] += value * len(x[part]) / len(x)
        self.batches += 1
        if self.batches % accumulates:
            return
        if is_synchronous:
            self._share_gradients()
        for replica in range(len(self.models)):
            self._update(replica)
        if is_synchronous:
            self.samples[:] = self.unsettled[:] = 0
            return
        self.updates += 1
        self.after_update()

    def parts(self, size: int) -> list[slice]:
        """The replicas' parts of the next global batch."""
        length = -(-size // len(self.models))
        return [slice(r * length, (r + 1) * length) for r in range(len(self.models))]

    def after_update(self) -> None:
        """Lets the replicas meet, if it is time."""
        if self.updates == self.case.local[1]["steps"]:
            self.meet()

    def _differentiated(self, replica: int) -> Callable:
        model, optimizer = self.models[replica], self.optimizers[replica]

        @tf.function(reduce_retracing=True)
        def gradients(x, y):
            with tf.GradientTape() as tape:
                value = loss()(y, model(x, training=True))
                scaled = optimizer.scale_loss(tf.add_n([value, *model.losses]))
            return value, tape.gradient(scaled, model.trainable_variables)

        return gradients

    def _gradients_of(self, replica: int, x: np.ndarray, y: np.ndarray) -> float:
        optimizer = self.optimizers[replica]
        value, gradients = self._gradients[replica](tf.constant(x), tf.constant(y))
        scaler = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if scaler and self.case.options:  # each micro-batch is checked, as each has its scale
            if not optimizer.check_finite(gradients):
                optimizer._stateful_handle_non_finite_grads()
                return float(value)
            gradients = [g / optimizer.dynamic_scale for g in gradients]
            self._count_finite(optimizer)
        self.waiting[replica].append(gradients)
        self.seen[replica] += len(x)
        self.unsettled[replica] += len(x)
        return float(value)

    def _share_gradients(self) -> None:
        """Gives all replicas the gradient of the global batch."""
        share = self.seen / self.seen.sum()
        parts = [[w * g for g in own[0]] for w, own in zip(share, self.waiting) if own]
        mean = [tf.add_n([tf.convert_to_tensor(g) for g in same]) for same in zip(*parts)]
        self.waiting = [[mean] for _ in self.models]

    @staticmethod
    def _count_finite(optimizer) -> None:
        optimizer.step_counter.assign_add(1)
        if int(optimizer.step_counter) == optimizer.dynamic_growth_steps:
            optimizer.step_counter.assign(0)
            optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)

    def _update(self, replica: int) -> None:
        waiting, self.waiting[replica] = self.waiting[replica], []
        if not waiting:
            return
        optimizer, variables = self.optimizers[replica], self.models[replica].trainable_variables
        before = int(optimizer.iterations)
        if len(waiting) == 1 and not self.case.options:
            optimizer.apply(waiting[0], variables)
        else:
            dense = [[tf.convert_to_tensor(g) for g in gradients] for gradients in waiting]
            means = [tf.add_n(parts) / len(parts) for parts in zip(*dense)]
            getattr(optimizer, "inner_optimizer", optimizer).apply(means, variables)
        if int(optimizer.iterations) > before:
            self.samples[replica] += self.seen[replica]
        self.seen[replica] = 0

    def meet(self) -> None:
        self.updates = 0
        if self.samples.any():
            self._meet_weights()
        self.meet_statistics()
        self.anchor = self.weights()
        self.samples[:] = 0

    def _meet_weights(self) -> None:
        share = self.samples / self.samples.sum()
        choice, arguments = self.case.local
        trained = [model.trainable_variables for model in self.models]
        new = self._mean(trained, share)
        if choice == "DiLoCo":
            rate, decay = arguments["outer_learning_rate"], arguments["outer_momentum"]
            moved = [anchor - mean for anchor, mean in zip(self.anchor, new)]
            self.momentum = [decay * m + d for m, d in zip(self.momentum, moved)]
            new = [
                anchor - rate * (d + decay * m)
                for anchor, d, m in zip(self.anchor, moved, self.momentum)
            ]
        averages = [self._averages(optimizer) for optimizer in self.optimizers]
        self._set(averages, self._mean(averages, share))
        self._set(trained, new)
        for variables in trained:
            for variable in variables:
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable.value))

    def meet_statistics(self) -> None:
        share = self.unsettled / self.unsettled.sum()
        self.unsettled[:] = 0
        statistics = [
            [v for v in model.non_trainable_variables if "float" in v.dtype]
            for model in self.models
        ]
        self._set(statistics, self._mean(statistics, share))

    @staticmethod
    def _set(variables: list[list], values: list) -> None:
        for own in variables:
            for variable, value in zip(own, values):
                variable.assign(value)

    @staticmethod
    def _averages(optimizer) -> list:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return inner._model_variables_moving_average if inner.use_ema else []

    @staticmethod
    def _mean(variables: list[list], share: np.ndarray) -> list[np.ndarray]:
        return [
            sum(part * v.numpy().astype("float64") for part, v in zip(share, same)).astype(
                "float32"
            )
            for same in zip(*variables)
        ]


def trained(case: Case, replicas: int) -> Replicas:
    """The case, trained by hand as `fit` trains it."""
    return Replicas(case, replicas).train().finish()


def fit(case: Case, strategy: tf.distribute.Strategy, **more: Any) -> tuple[keras.Model, Any]:
    """The case, trained by `fit` under a strategy."""
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), loss(), metrics=["accuracy"], **case.compiled)
    return model, fit_on(case, model, **more)


def fit_on(case: Case, model: keras.Model, **more: Any) -> Any:
    """Trains `model` further."""
    x, y = case.data()
    arguments = {"epochs": case.epochs, "verbose": 0, **more}
    if case.unknown:
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(case.batch)
        return model.fit(data.filter(lambda *batch: True), **arguments)
    return model.fit(x, y, batch_size=case.batch, shuffle=False, **arguments)
