"""What differs between the ranks: named before the first step, by the epoch's end, or harmless."""

import contextlib
import random
import unittest.mock
import uuid

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multi_process.reference import BATCH, BIAS, KERNEL, MOMENTUM, RATE, ROWS, X, Y
from tests.multi_process.scenarios.common import error_of, linear, state


def fit(model, **arguments):
    """Trains a linear model in the given order."""
    usual = {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(**{**usual, **arguments})


class Differing:
    """A rank that makes something else than the others.

    Args:
        here: the rank.
    """

    def __init__(self, here):
        self.here = here
        self.strategy = here.strategy

    def of(self, first, second):
        """`first` in rank 0, `second` in rank 1."""
        return second if self.here.rank else first

    def model(self, *layers, optimizer=None, loss="mse", **options):
        """A small model; `optimizer` makes one."""
        with self.strategy.scope():
            layers = layers or (keras.layers.Dense(2, activation="relu"),)
            model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
            model.compile(optimizer() if optimizer else "sgd", loss, **options)
        return model

    def fits(self, *layers, **options):
        """Makes a model and trains it."""
        fit(self.model(*layers, **options))

    def trains(self, **arguments):
        """Trains the linear model."""
        fit(self.here.model(), **arguments)

    def reads(self, data, **arguments):
        """Trains the linear model with batches."""
        self.here.model().fit(data, verbose=0, **arguments)

    @contextlib.contextmanager
    def other(self, target, name, value):
        """In rank 1, `target.name` is `value`."""
        mock = unittest.mock.patch.object(target, name, value)
        with mock if self.here.rank else contextlib.nullcontext():
            yield


def dense(**options):
    return keras.layers.Dense(2, **options)


def _connected(on):
    with on.strategy.scope():
        one, two = keras.Input((4,)), keras.Input((4,))
        parts = [keras.layers.Dense(4)(one), keras.layers.Dense(4)(two)]
        outputs = keras.layers.Subtract()(on.of(parts, parts[::-1]))
        model = keras.Model([one, two], outputs)
        model.compile("sgd", "mse")
    model.fit([X, X], X, verbose=0)


def _chosen_by_name(on):
    on.strategy = on.here.make(compression={"first/*": "topk"})
    on.fits(dense(name=on.of("first", "second")))


def _frozen(on):
    model = on.model()
    model.layers[0].trainable = on.of(True, False)
    model.fit(X, Y, verbose=0)


def _dtype_policy(on):
    keras.config.set_dtype_policy(on.of("float32", "mixed_float16"))
    on.fits()


def _rate_set_later(on):
    model = on.here.model()
    model.optimizer.learning_rate = on.of(0.25, 0.5)
    fit(model)


def _schedule(on):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, on.of(10, 20), 0.5)
    on.fits(optimizer=lambda: keras.optimizers.SGD(decay))


def _scaled(factor):
    return lambda targets, outputs: factor * keras.losses.mean_squared_error(targets, outputs)


class _Own(keras.Model):
    """A model without a configuration."""

    def __init__(self, layer):
        super().__init__()
        self._made_by = object()
        self._layer = layer

    def call(self, x):
        return self._layer(x)


def _own_model(on):
    with on.strategy.scope():
        model = _Own(keras.layers.Dense(1, activation=on.of("elu", "selu")))
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def _one_more_variable(on):
    model = on.here.model()
    if on.here.rank == 0:
        with on.strategy.scope():
            tf.Variable(tf.zeros(3), name="extra")
    fit(model)


def _method(on):
    model = on.here.model()
    on.of(model.fit, model.evaluate)(X, Y, verbose=0)


def _loads_weights(on):
    model = on.here.model()
    path = on.here.folder / "a.weights.h5"
    if on.here.rank == 0:
        model.save_weights(path)
    on.here.meet()
    on.of(lambda: model.load_weights(path), lambda: model.predict(X, verbose=0))()


def _seed(on):
    previous, _ = tf.compat.v1.random.get_seed(0)
    tf.random.set_seed(on.here.rank)
    try:
        on.here.make()
    finally:
        tf.random.set_seed(previous)


def _version(module):
    def makes(on):
        with on.other(module, "__version__", "0.0.1"):
            on.here.make()

    return makes


def _python(on):
    with on.other(tfdist.processes.digest.platform, "python_version_tuple", lambda: "310"):
        on.here.make()


def _epsilon(on):
    previous = keras.config.epsilon()
    keras.config.set_epsilon(on.of(1e-7, 1e-5))
    try:
        on.trains()
    finally:
        keras.config.set_epsilon(previous)


def batches_of(on, size=BATCH, rows=ROWS, x=X, y=Y, **options):
    return tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows])).batch(size, **options)


_VALIDATION = {"validation_data": (X, Y), "validation_batch_size": BATCH}
_WARMUP = tfdist.callbacks.LearningRateWarmup

# What each difference is, and what the error of all ranks says.
MODELS = {
    "units": (
        lambda on: on.fits(keras.layers.Dense(on.of(2, 3))),
        "shape: '(4, 2)' in rank 0, '(4, 3)' in rank 1 (where rank 0 makes the variable",
    ),
    "number of layers": (
        lambda on: on.fits(*[dense() for _ in range(on.of(1, 2))]),
        "shape: '(2, 1)' in rank 0, '(2, 2)' in rank 1 (where rank 0 makes the variable",
    ),
    "one more variable": (_one_more_variable, "rank 0 makes the variable extra with shape (3,)"),
    "dtype of a layer": (
        lambda on: on.fits(dense(dtype=on.of("float32", "float64"))),
        "dtype: 'float32' in rank 0, 'float64' in rank 1",
    ),
    "dtype policy": (_dtype_policy, "dtype policy: 'float32' in rank 0, 'mixed_float16' in rank 1"),
    "activation": (
        lambda on: on.fits(dense(activation=on.of("relu", "tanh"))),
        "model.config.layers[1].config.activation: 'relu' in rank 0, 'tanh' in rank 1",
    ),
    "activation in a model without configuration": (
        _own_model,
        "config.activation: 'elu' in rank 0, 'selu' in rank 1",
    ),
    "rate of dropout": (
        lambda on: on.fits(keras.layers.Dropout(on.of(0.25, 0.5))),
        "config.rate: '0.25' in rank 0, '0.5' in rank 1",
    ),
    "function of a Lambda layer": (
        lambda on: on.fits(keras.layers.Lambda(on.of(lambda x: x + 1.0, lambda x: x + 2.0))),
        "model.config.layers[1].config.function",
    ),
    "regularizer": (
        lambda on: on.fits(dense(kernel_regularizer=keras.regularizers.L2(on.of(0.5, 0.25)))),
        "kernel_regularizer.config.l2: '0.5' in rank 0, '0.25' in rank 1",
    ),
    "names by which compressors are chosen": (
        _chosen_by_name,
        "config.name: 'first' in rank 0, 'second' in rank 1",
    ),
    "connections": (_connected, "model.config"),
    "trainable": (_frozen, "trainable: True in rank 0, False in rank 1"),
}
COMPILED = {
    "optimizer": (
        lambda on: on.fits(optimizer=lambda: on.of("adam", "nadam")),
        "inner_optimizer.class_name: 'Adam' in rank 0, 'Nadam' in rank 1",
    ),
    "optimizer with other variables": (
        lambda on: on.fits(optimizer=on.of(keras.optimizers.Adam, keras.optimizers.Lion)),
        "class_name: 'Adam' in rank 0, 'Lion' in rank 1",
    ),
    "learning rate": (
        lambda on: on.fits(optimizer=lambda: keras.optimizers.SGD(on.of(0.1, 0.2))),
        "value: '0.1' in rank 0, '0.2' in rank 1 (where rank 0 makes the variable sgd",
    ),
    "learning rate that is set later": (
        _rate_set_later,
        "learning_rate: '0.25' in rank 0, '0.5' in rank 1",
    ),
    "learning rate schedule": (_schedule, "decay_steps: 10 in rank 0, 20 in rank 1"),
    "momentum": (
        lambda on: on.fits(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=on.of(0.5, 0.75))),
        "config.momentum: '0.5' in rank 0, '0.75' in rank 1",
    ),
    "clipnorm": (
        lambda on: on.fits(optimizer=lambda: keras.optimizers.SGD(0.1, clipnorm=on.of(None, 1.0))),
        "config.clipnorm: None in rank 0, '1.0' in rank 1",
    ),
    "loss": (
        lambda on: on.fits(loss=on.of("mse", "mae")),
        "compile.loss: 'mse' in rank 0, 'mae' in rank 1",
    ),
    "setting of the loss": (
        lambda on: on.fits(loss=keras.losses.Huber(delta=on.of(1.0, 2.0))),
        "delta: '1.0' in rank 0, '2.0' in rank 1",
    ),
    "what a loss captures": (
        lambda on: on.fits(loss=_scaled(on.of(1.0, 2.0))),
        "compile.loss.captured[0]: '1.0' in rank 0, '2.0' in rank 1",
    ),
    "code of a loss": (
        lambda on: on.fits(loss=on.of(lambda y, p: (y - p) ** 2, lambda y, p: abs(y - p))),
        "compile.loss.code",
    ),
    "loss weights": (
        lambda on: on.fits(loss_weights=on.of([1.0], [2.0])),
        "compile.loss_weights[0]: '1.0' in rank 0, '2.0' in rank 1",
    ),
    "metrics": (
        lambda on: on.fits(metrics=on.of(["mae"], [])),
        "compile.metrics: ['mae'] in rank 0, [] in rank 1",
    ),
    "weighted metrics": (
        lambda on: on.fits(weighted_metrics=on.of(["mae"], ["mse"])),
        "compile.weighted_metrics[0]: 'mae' in rank 0, 'mse' in rank 1",
    ),
    "run_eagerly": (
        lambda on: on.fits(run_eagerly=on.of(False, True)),
        "compile.run_eagerly: False in rank 0, True in rank 1",
    ),
    "steps_per_execution": (
        lambda on: on.fits(steps_per_execution=on.of(1, 2)),
        "compile.steps_per_execution: 1 in rank 0, 2 in rank 1",
    ),
}
STRATEGIES = {
    "accumulation_steps": (
        lambda on: on.here.make(accumulation_steps=on.of(1, 2)),
        "accumulation_steps: 1 in rank 0, 2 in rank 1",
    ),
    "bucket_bytes": (
        lambda on: on.here.make(bucket_bytes=on.of(1000, 2000)),
        "bucket_bytes: 1000 in rank 0, 2000 in rank 1",
    ),
    "compression in one rank": (
        lambda on: on.here.make(compression=on.of(None, "topk")),
        "compression: None in rank 0, {'*': {'error_feedback': True",
    ),
    "option of the compressor": (
        lambda on: on.here.make(compression=tfdist.compression.TopK(on.of(0.5, 0.25))),
        "ratio: '0.5' in rank 0, '0.25' in rank 1",
    ),
    "seed of compressors": (
        lambda on: on.here.make(seed=on.here.rank),
        "seed: 0 in rank 0, 1 in rank 1",
    ),
    "random seed": (_seed, "random seed: 0 in rank 0, 1 in rank 1"),
    "version of tfdist": (_version(tfdist), "versions.tfdist: '"),
    "version of Keras": (_version(keras), "versions.Keras: '"),
    "version of TensorFlow": (_version(tf), "versions.TensorFlow: '"),
    "version of Python": (_python, "versions.Python: '"),
}
RUNS = {
    "keras.config": (_epsilon, "keras.config[2]: '1e-07' in rank 0, '1e-05' in rank 1"),
    "number of samples": (
        lambda on: on.trains(x=X[: on.of(67, 66)], y=Y[: on.of(67, 66)]),
        "data.x: 'array of shape (67, 4)' in rank 0, 'array of shape (66, 4)' in rank 1",
    ),
    "length of a data set": (
        lambda on: on.reads(batches_of(on, rows=on.of(67, 48))),
        "batches: 5 in rank 0, 3 in rank 1",
    ),
    "type of a data set": (
        lambda on: on.reads(batches_of(on, y=Y.astype(on.of("float32", "float64")))),
        "types: ",
    ),
    "epochs": (
        lambda on: on.trains(epochs=on.of(1, 2)),
        "arguments.epochs: 1 in rank 0, 2 in rank 1",
    ),
    "class weights": (
        lambda on: on.trains(class_weight=on.of(None, {0: 1.0})),
        "arguments.class_weight: None in rank 0, {'0': '1.0'} in rank 1",
    ),
    "validation data": (
        lambda on: on.trains(**on.of({}, _VALIDATION)),
        "data.validation_data: nothing in rank 0, ",
    ),
    "callback that sets the learning rate": (
        lambda on: on.trains(callbacks=on.of([], [_WARMUP(1)])),
        "arguments.tfdist's callbacks: [] in rank 0, ['LearningRateWarmup'] in rank 1",
    ),
    "method": (_method, "rank 0 begins `fit`; rank 1 begins `evaluate`"),
    "loading weights": (_loads_weights, "rank 0 loads weights; rank 1 begins `predict`"),
    "batch size of predict": (
        lambda on: on.here.model().predict(X, on.of(16, 17), verbose=0),
        "arguments.batch_size: 16 in rank 0, 17 in rank 1",
    ),
}
# More arguments and data, of which the same code tells the ranks.
MORE_RUNS = {
    "kind of data": (
        lambda on: on.reads(on.of(batches_of(on), iter([(X, Y)]))),
        "data.x: 'data set' in rank 0, 'generator' in rank 1",
    ),
    "data set without end": (
        lambda on: on.reads(on.of(batches_of(on), batches_of(on).repeat()), steps_per_epoch=2),
        "batches: 5 in rank 0, 'without end' in rank 1",
    ),
    "batches of static size": (
        lambda on: on.reads(batches_of(on, rows=64, drop_remainder=on.of(False, True))),
        "types: ",
    ),
    "batch size": (
        lambda on: on.trains(batch_size=on.of(16, 17)),
        "arguments.batch_size: 16 in rank 0, 17 in rank 1",
    ),
    "initial epoch": (
        lambda on: on.trains(initial_epoch=on.of(0, 1), epochs=2),
        "arguments.initial_epoch: 0 in rank 0, 1 in rank 1",
    ),
    "steps per epoch": (
        lambda on: on.trains(steps_per_epoch=on.of(3, 4)),
        "arguments.steps_per_epoch: 3 in rank 0, 4 in rank 1",
    ),
    "shuffle": (
        lambda on: on.trains(shuffle=on.of(False, True)),
        "arguments.shuffle: False in rank 0, True in rank 1",
    ),
    "sample weights": (
        lambda on: on.trains(**on.of({}, {"sample_weight": np.ones(len(X))})),
        "data.sample_weight: nothing in rank 0, 'array of shape (67,)' in rank 1",
    ),
    "validation frequency": (
        lambda on: on.trains(validation_freq=on.of(1, 2), **_VALIDATION),
        "arguments.validation_freq: 1 in rank 0, 2 in rank 1",
    ),
    "steps of evaluate": (
        lambda on: on.here.model().evaluate(X, Y, BATCH, steps=on.of(2, 3), verbose=0),
        "arguments.steps: 2 in rank 0, 3 in rank 1",
    ),
}


def errors(here, differences):
    """The error of each difference, and what training comes to after them."""
    found = {}
    for name, (difference, _) in differences.items():
        found[name] = error_of(difference, Differing(here))
        keras.config.set_dtype_policy("float32")
    model = here.model()
    fit(model)
    return {**found, "state": state(model)}


def models(here):
    """The ranks' models differ."""
    return errors(here, MODELS)


def compiled(here):
    """They are compiled in different ways."""
    return errors(here, COMPILED)


def strategies(here):
    """The strategies or versions differ."""
    return errors(here, STRATEGIES)


def runs(here):
    """The ranks do different things, or with different arguments."""
    return errors(here, RUNS)


def more_runs(here):
    """More of that."""
    return errors(here, MORE_RUNS)


def generated(on, lengths, rows=BATCH, endless=False):
    """Batches of unknown number, `lengths` of them by rank."""

    def batches():
        for number in range(10**9 if endless else on.of(*lengths)):
            start = number % 4 * BATCH
            yield X[start : start + rows], Y[start : start + rows]

    specs = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def short_last(on):
    return generated(on, (3, 3)).concatenate(generated(on, (1, 1), rows=on.of(16, 8)))


def _python_generator(on):
    for number in range(on.of(5, 3)):
        yield X[number : number + 4], Y[number : number + 4]


def changed(on, first):
    y = Y.copy()
    y[first:] += on.here.rank
    return y


# What each rank reads, and what the error of all ranks says at the epoch's end or before.
ENDS = {
    "a generator that ends early": (
        lambda on: on.reads(_python_generator(on)),
        "data that ended in rank 1 after 3 batches; another rank has read 5",
    ),
    "a data set that ends early": (
        lambda on: on.reads(generated(on, (4, 2))),
        "data that ended in rank 1 after 2 batches; another rank has read 4",
    ),
    "a data set that ends early in rank 0": (
        lambda on: on.reads(generated(on, (1, 4))),
        "data that ended in rank 0 after 1 batches; another rank has read 4",
    ),
    "an empty data set": (
        lambda on: on.reads(generated(on, (3, 0))),
        "data that ended in rank 1 after 0 batches; another rank has read 3",
    ),
    "a shorter last batch": (
        lambda on: on.reads(short_last(on)),
        "other numbers of samples in rank 1 than in rank 0, from batch 4 on",
    ),
}
CONTENTS = {
    "other targets": (
        lambda on: on.trains(y=Y + on.here.rank),
        "other targets or sample weights in rank 1 than in rank 0, from batch 1 on",
    ),
    "other targets from the third batch on": (
        lambda on: on.trains(y=changed(on, 2 * BATCH)),
        "other targets or sample weights in rank 1 than in rank 0, from batch 3 on",
    ),
    "other sample weights": (
        lambda on: on.trains(sample_weight=np.ones(len(X)) + on.here.rank),
        "other targets or sample weights in rank 1 than in rank 0, from batch 1 on",
    ),
    "another order": (
        lambda on: on.reads(batches_of(on, x=X[:: on.of(1, -1)], y=Y[:: on.of(1, -1)])),
        "other targets or sample weights in rank 1 than in rank 0, from batch 1 on",
    ),
    "other validation data": (
        lambda on: on.trains(validation_data=(X, changed(on, 0))),
        "other targets or sample weights in rank 1 than in rank 0, from batch 1 on",
    ),
    "other data in evaluate": (
        lambda on: on.here.model().evaluate(X, changed(on, 40), BATCH, verbose=0),
        "other targets or sample weights in rank 1 than in rank 0, from batch 3 on",
    ),
    "other data with several steps per execution": (
        lambda on: fit(on.here.model(steps_per_execution=2), x=X, y=changed(on, 2 * BATCH)),
        "other targets or sample weights in rank 1 than in rank 0, from batch 3 on",
    ),
}


def ends(here):
    """Data that end, or have a shorter batch, in one rank."""
    return errors(here, ENDS)


def contents(here):
    """Data whose contents differ."""
    return errors(here, CONTENTS)


def _names(on):
    if on.here.rank:
        with tf.Graph().as_default():
            keras.layers.Dense(1)  # of a model that only this rank has made
    model = linear(on.strategy)
    fit(model)
    return model


def _with(**by_rank):
    def trains(on):
        model = on.here.model()
        fit(model, **{name: on.of(*values) for name, values in by_rank.items()})
        return model

    return trains


def _numpy_seeds(on):
    states = np.random.get_state(), random.getstate()
    np.random.seed(on.here.rank)
    random.seed(on.here.rank)
    model = linear(on.strategy)
    fit(model)
    np.random.set_state(states[0])
    random.setstate(states[1])
    return model


def _progress(on):
    strategy = on.here.make(log_all_ranks=on.of(False, True))
    model = linear(strategy)
    fit(model)
    return model


def _initializers(on):
    with on.strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer=on.of("zeros", "ones"))
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), "mse")
    assert not model.get_weights()[0].any()  # those of rank 0
    model.set_weights([KERNEL, BIAS])
    fit(model)
    return model


@keras.saving.register_keras_serializable("tests")
class _Described(keras.layers.Layer):
    """A layer that gives what it was given as its configuration."""

    def __init__(self, what, **options):
        super().__init__(**options)
        self._what = what

    def call(self, x):
        return tf.identity(x)

    def get_config(self):
        return {**super().get_config(), "what": self._what}


def _linear_of(on, *layers, **options):
    with on.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)], **options)
        model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), "mse")
    model.set_weights([KERNEL, BIAS])
    fit(model)
    return model


def _described(value):
    return lambda on: _linear_of(on, _Described(value(on)))


def _random_names(on):
    names = [uuid.uuid4().hex for _ in range(2)]
    return _linear_of(on, keras.layers.Identity(name=names[0]), name=f"model_{names[1]}")


def _tensors(on):
    model = on.here.model()
    fit(model, x=on.of(X, tf.constant(X)), y=on.of(Y, Y.astype("float64")))
    return model


class _Nothing(keras.callbacks.Callback):
    """A callback that some rank has."""


HARMLESS = {
    "names that Keras counts": _names,
    "progress of all ranks": _progress,
    "tensors and arrays": _tensors,
    "names that users chose": _random_names,
    "addresses of objects": _described(lambda on: repr([object() for _ in range(9)][-1])),
    "initializers": _initializers,
}
MORE_HARMLESS = {
    "callbacks": _with(callbacks=([], [_Nothing(), keras.callbacks.History()])),
    "progress": _with(verbose=(0, 2)),
    "seeds of NumPy and Python": _numpy_seeds,
    "paths of files": _described(lambda on: f"/tmp/rank-{on.here.rank}/words.txt"),
    "keys without a name": _described(lambda on: {object(): 1}),
}


def harmless(here):
    """What the ranks come to in spite of each difference."""
    return _states(here, HARMLESS)


def more_harmless(here):
    """More of that."""
    return _states(here, MORE_HARMLESS)


def _states(here, differences):
    return {name: state(differs(Differing(here))) for name, differs in differences.items()}


def one_pass_after_the_other(here):
    """Equal data in several epochs, whose order changes and which are read ahead; no error."""

    def batches():
        # One for each use: two that share the numbers of one `shuffle` are read in turns that no
        # process can know.
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(67, seed=1).batch(BATCH)

    raised = {}
    for name, (data, options) in {
        "reshuffled": (batches(), {}),
        "more steps than data": (batches().repeat(), {"steps_per_epoch": 7}),
        "unknown length": (batches().filter(lambda *batch: True), {}),
        "fewer steps than data": (batches(), {"steps_per_epoch": 2}),
    }.items():
        raised[name] = error_of(
            here.model().fit, data, epochs=2, validation_data=batches(), verbose=0, **options
        )
    return raised
