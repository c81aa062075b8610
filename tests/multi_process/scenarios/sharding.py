"""Sharded training among processes: what it keeps, saves and goes on with."""

import functools
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import compat
from tfdist.step.sharding.parts import Parts

_X = np.random.default_rng(0).normal(size=(26, 5)).astype("float32")
_Y = np.random.default_rng(1).normal(size=(26, 3)).astype("float32")
_WORDS = np.random.default_rng(2).integers(0, 11, (26, 4))
STEPS = 3  # micro-batches of an update
KINDS = {"optimizer": 1, "gradients": STEPS, "parameters": STEPS}


def _model(strategy, kind=keras.optimizers.Adam, **options):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        words, numbers = keras.Input((4,), dtype="int32"), keras.Input((5,))
        embedded = keras.layers.Embedding(11, 3)(words)
        embedded = keras.layers.GlobalAveragePooling1D()(embedded)
        hidden = keras.layers.Concatenate()([embedded, keras.layers.Dense(7)(numbers)])
        outputs = keras.layers.Dense(3, kernel_constraint="max_norm")(hidden)
        model = keras.Model([words, numbers], outputs)
        model.compile(kind(1e-2, global_clipnorm=0.1, **options), "mse")
    return model


def _data():
    return tf.data.Dataset.from_tensor_slices(((_WORDS, _X), _Y)).batch(8)


def _fit(model, epochs=1, first=0, callbacks=()):
    model.fit(_data(), epochs=epochs, initial_epoch=first, verbose=0, callbacks=list(callbacks))


def _weights(model):
    return model.get_weights()


def reference(steps=1, epochs=4):
    """The weights on one device after so many epochs."""
    model = _model(tfdist.MirroredStrategy(["CPU:0"], accumulation_steps=steps))
    _fit(model, epochs)
    return _weights(model)


def resumed(here):
    """The weights after four epochs, by sharding and by how the first two were saved."""
    if here.rank == 0:
        keras.layers.Dense(1)  # from here on Keras counts names differently in the ranks
    found = {}
    for sharding, steps in KINDS.items():
        strategy = here.make(sharding=sharding, accumulation_steps=steps)
        folder = here.folder / sharding
        backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
        file = str(folder / "checkpoint.keras")
        model = _model(strategy)
        _fit(model, 2, callbacks=[backup, keras.callbacks.ModelCheckpoint(file)])
        model.save(folder / "saved.keras")
        here.meet()
        state = model.optimizer.parts_of_state
        own = sum(variable.shape.num_elements() for variable in state.owned)
        _fit(model, 4, first=2)
        weights = {"whole": _weights(model)}
        for name, path in (("saved", folder / "saved.keras"), ("checkpoint", file)):
            with strategy.scope():
                other = keras.models.load_model(path)
            _fit(other, 4, first=2)
            weights[name] = _weights(other)
        other = _model(strategy)
        _fit(other, 4, callbacks=[backup])
        weights["backed up"] = _weights(other)
        plain = here.make(accumulation_steps=steps)
        with plain.scope():
            other = keras.models.load_model(folder / "saved.keras")
        _fit(other, 4, first=2)
        weights["without sharding"] = _weights(other)
        found[sharding] = {"weights": weights, "own": own, "all": 2 * model.count_params()}
    return found


# Optimizers that look at whole variables, and the sharding and micro-batches to try them with.
WHOLE = {
    "Lamb": (keras.optimizers.Lamb, "optimizer", 1),
    "Adafactor": (keras.optimizers.Adafactor, "gradients", STEPS),
    "Muon": (keras.optimizers.Muon, "gradients", 1),
}


def owned(here):
    """The weights after four epochs, in one go and resumed, and what this process keeps."""
    found = {}
    for name, (kind, sharding, steps) in WHOLE.items():
        strategy = here.make(sharding=sharding, accumulation_steps=steps)
        file = here.folder / f"{name}.keras"
        model = _model(strategy, kind)
        backup = keras.callbacks.BackupAndRestore(here.folder / name, delete_checkpoint=False)
        _fit(model, 2, callbacks=[backup])
        model.save(file)
        here.meet()
        _fit(model, 4, first=2)
        state = model.optimizer.parts_of_state
        weights = {"whole": _weights(model)}
        for way, other in (
            ("saved", strategy),
            ("without sharding", here.make(accumulation_steps=steps)),
        ):
            with other.scope():
                loaded = keras.models.load_model(file)
            _fit(loaded, 4, first=2)
            weights[way] = _weights(loaded)
        again = _model(strategy, kind)
        _fit(again, 4, callbacks=[backup])
        weights["backed up"] = _weights(again)
        own = sum(part.numpy().size for e in state.entries() for part in state.held(e))
        everything = sum(variable.shape.num_elements() for variable in state.owned)
        found[name] = {"weights": weights, "own": own, "all": everything}
    found["one"] = _with_one_variable(here.make(sharding="optimizer"))
    return found


def _with_one_variable(strategy):
    """The weights of a model with a single variable: all ranks but one have nothing to give."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, use_bias=False)])
        model.compile(keras.optimizers.Lamb(1e-2), "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8), epochs=2, verbose=0)
    return _weights(model)


def reference_of_one():
    """The same on one device."""
    return _with_one_variable(tfdist.MirroredStrategy(["CPU:0"]))


def reference_of_owned(name):
    """The same on one device."""
    kind, _, steps = WHOLE[name]
    model = _model(tfdist.MirroredStrategy(["CPU:0"], accumulation_steps=steps), kind)
    _fit(model, 4)
    return _weights(model)


def not_a_number(here):
    """How training ends where a target of the last replica's part of the second batch is infinite.

    By sharding and by callback.
    """
    y = _Y.copy()
    y[15] = np.inf
    data = tf.data.Dataset.from_tensor_slices(((_WORDS, _X), y)).batch(8)
    found = {"replicas": here.size * here.devices}
    for sharding in KINDS:
        strategy, of_kind = here.make(sharding=sharding), {}
        for stop in (tfdist.callbacks.TerminateOnNaN(), keras.callbacks.TerminateOnNaN()):
            model = _model(strategy)
            epochs = model.fit(data, epochs=3, verbose=0, callbacks=[stop]).epoch
            of_kind[type(stop).__module__.split(".")[0]] = {
                "epochs": len(epochs),
                "iterations": int(model.optimizer.iterations.numpy()),
                "replicas": sorted({finding[2] for finding in getattr(stop, "findings", ())}),
                "finite": any(np.isfinite(weight).all() for weight in _weights(model)),
            }
        found[sharding] = of_kind
    return found


def averaged(here):
    """The weights with moving averages that take their place at the end of `fit`."""
    found = {}
    for kind in ("optimizer", "parameters"):
        model = _model(here.make(sharding=kind), use_ema=True, ema_momentum=0.5)
        _fit(model, 2)
        found[kind] = _weights(model)
    return found


def reference_of_averages():
    """The same on one device."""
    model = _model(tfdist.MirroredStrategy(["CPU:0"]), use_ema=True, ema_momentum=0.5)
    _fit(model, 2)
    return _weights(model)


def own_loop(here):
    """The weights after a loop of the user's own, by sharding."""
    return {kind: _own_loop(here.make(sharding=kind)) for kind in ("optimizer", "parameters")}


def _own_loop(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        dense = keras.layers.Dense(3)
        dense.build((None, 5))
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.Adam(1e-2))
    data = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8)

    @tf.function
    def train(x, y):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = keras.losses.MeanSquaredError()(y, dense(x))
            variables = dense.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        strategy.run(step, args=(x, y))

    for x, y in strategy.experimental_distribute_dataset(data):
        train(x, y)
    parts = [v.shape for v in optimizer.parts_of_state.owned]
    return {"weights": dense.get_weights(), "parts": [tuple(shape) for shape in parts]}


def reference_of_loop():
    """The same on one device, with Keras alone."""
    keras.utils.set_random_seed(3)
    dense, optimizer = keras.layers.Dense(3), keras.optimizers.Adam(1e-2)
    dense.build((None, 5))
    for x, y in tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, dense(x))
        variables = dense.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
    return dense.get_weights()


def _numbered(shape, dtype=None):
    return tf.cast(tf.reshape(tf.range(shape[0] * shape[1]), shape), dtype)


# Initializers, given the rank, and a generator of seeds that is another one in each rank.
INITIALIZERS = {
    "generator": lambda rank, seeds: keras.initializers.HeNormal(seed=seeds),
    "next of the generator": lambda rank, seeds: keras.initializers.RandomUniform(seed=seeds),
    "seeds of their own": lambda rank, seeds: keras.initializers.GlorotUniform(),
    "settings": lambda rank, seeds: keras.initializers.RandomNormal(1.0 + rank, seed=seeds),
    "constants": lambda rank, seeds: keras.initializers.Constant(3.0 + rank),
    "kinds": lambda rank, seeds: (
        keras.initializers.Ones() if rank else keras.initializers.TruncatedNormal(seed=seeds)
    ),
    "function": lambda rank, seeds: keras.initializers.Zeros() if rank else _numbered,
    "no function": lambda rank, seeds: _numbered if rank else keras.initializers.Zeros(),
    "orthogonal": lambda rank, seeds: keras.initializers.Orthogonal(seed=seeds),
    "after all": lambda rank, seeds: keras.initializers.LecunUniform(seed=seeds),
}


def begun(here):
    """First values where ranks differ in seeds or initializers, and which were cut from wholes."""
    strategy = here.make(sharding="parameters")
    seed, _ = tf.compat.v1.random.get_seed(0)
    found = {"values": {}, "cut": []}
    for name, value, cut in _first_values(here.rank, strategy):
        found["values"][name] = value
        found["cut"] += [name] * cut
    tf.random.set_seed(seed)
    return found


def _first_values(rank, strategy):
    keras.utils.set_random_seed(rank)
    seeds = keras.random.SeedGenerator(rank)
    for name, make in INITIALIZERS.items():
        with mock.patch.object(Parts, "kept_part", autospec=True, side_effect=Parts.kept_part) as c:
            with strategy.scope():
                weight = keras.Variable(make(rank, seeds), shape=(7, 5))
        yield name, weight.numpy(), c.called


def reference_of_first_values():
    """Those of rank 0 on one device."""
    one = tfdist.MirroredStrategy(["CPU:0"])
    return {name: value for name, value, _ in _first_values(0, one)}


class _Averages(keras.callbacks.Callback):
    """Sets the weights to the means of what files have, and notes the loss with the first one."""

    def __init__(self, paths):
        super().__init__()
        self._paths = paths
        self.loss = 0.0

    def on_train_end(self, logs=None):
        found = []
        for path in self._paths:
            self.model.load_weights(path)
            found.append(self.model.get_weights())
        self.model.load_weights(self._paths[0])
        self.loss = self.model.evaluate(_data(), verbose=0)
        self.model.set_weights([np.mean(arrays, axis=0) for arrays in zip(*found)])


def _averaged_files(strategy, folder):
    """The weights after averaging and after one more epoch, and a loss."""
    model = _model(strategy)
    paths = [str(folder / f"{epoch}.weights.h5") for epoch in (1, 2)]
    saves = keras.callbacks.ModelCheckpoint(
        str(folder / "{epoch}.weights.h5"), save_weights_only=True
    )
    averages = _Averages(paths)
    _fit(model, 2, callbacks=[saves, averages])
    found = {"averaged": _weights(model), "loss": averages.loss}
    _fit(model)
    return {**found, "trained": _weights(model)}


def reference_of_files(folder):
    """The same on one device."""
    return _averaged_files(tfdist.MirroredStrategy(["CPU:0"]), folder)


class _SetsAfterLoading(keras.callbacks.Callback):
    """Loads weights in all ranks, and then sets one of them, or none if there is no value."""

    def __init__(self, path, value):
        super().__init__()
        self._path, self._value = path, value

    def on_epoch_end(self, epoch, logs=None):
        self.model.load_weights(self._path)
        if self._value is not None:
            self.model.layers[-1].kernel.assign(self._value)


def loaded_in_callbacks(here):
    """Weights that callbacks load, read, run, set, and set in one rank only."""
    strategy = here.make(sharding="parameters")
    found = _averaged_files(strategy, here.folder)
    model = _model(strategy)
    first = model.layers[-1].kernel.numpy()
    model.layers[-1].kernel.assign(first)  # so the ranks cannot tell by the value
    path = str(here.folder / "1.weights.h5")
    sets = _SetsAfterLoading(path, first if strategy.is_chief else None)
    found["one"] = _error(lambda: _fit(model, callbacks=[sets]))
    return found


def restored_after_loading(here):
    """The weights after four epochs, the first two from a backup, of a model that was loaded."""
    found = {}
    for sharding in ("optimizer", "parameters"):
        strategy, folder = here.make(sharding=sharding), here.folder / sharding
        backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
        _fit(_model(strategy), 2, callbacks=[backup])
        model = _model(strategy)
        _fit(model)
        model.save(folder / "other.keras")
        here.meet()
        with strategy.scope():
            model = keras.models.load_model(folder / "other.keras")
        _fit(model, 4, callbacks=[backup])
        found[sharding] = _weights(model)
    return found


class _Sets(keras.callbacks.Callback):
    """Sets weights in rank 0 only."""

    def __init__(self, is_chief):
        super().__init__()
        self._is_chief = is_chief

    def on_epoch_end(self, epoch, logs=None):
        if self._is_chief:
            self.model.layers[-1].kernel.assign(np.ones((10, 3)))


class _Reads(keras.callbacks.Callback):
    """Reads a weight in one rank only."""

    def __init__(self, reads):
        super().__init__()
        self._reads = reads

    def on_epoch_end(self, epoch, logs=None):
        if self._reads:
            self.model.layers[-1].kernel.numpy()


def _error(function):
    try:
        function()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def _predict(model):
    return model.predict([_WORDS[:2], _X[:2]], verbose=0)


def looked_at(here):
    """What scripts and callbacks see and set of weights in parts."""
    strategy = here.make(sharding="parameters")
    model = _model(strategy)
    own = sum(v.parts.rows * v.parts.row for v in model.variables if compat.is_sharded(v))
    best = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    _fit(model, 1)
    kept = _weights(model)
    _fit(model, 5, first=1, callbacks=[best])
    restored = [one.tolist() for one in _weights(model)]
    model.set_weights(kept)
    set_again = max(np.abs(a - b).max() for a, b in zip(kept, _weights(model)))
    one_alone = _error(lambda: _fit(model, 1, callbacks=[_Sets(strategy.is_chief)]))
    model.set_weights(kept)
    reads = [strategy.is_chief, not strategy.is_chief]
    reading = [_error(functools.partial(_fit, model, 1, 0, [_Reads(one)])) for one in reads]
    model.layers[-1].kernel.assign(np.full((10, 3), 1.0 + strategy.processes.rank))
    mixed = [_error(lambda: _fit(model, 1)), _error(lambda: _predict(model))]
    model.set_weights(kept)
    kernels = [layer.kernel for layer in model.layers if hasattr(layer, "kernel")]
    apart = _error(lambda: kernels[0 if strategy.is_chief else 1].numpy())
    outputs = model([tf.constant(_WORDS[:2]), tf.constant(_X[:2])])
    predicted = _predict(model)
    return {
        "own": own,
        "all": sum(int(np.prod(v.shape)) for v in model.variables if compat.is_sharded(v)),
        "weights": _weights(model),
        "best": [one.tolist() for one in best.best_weights],
        "stopped": restored,
        "set": float(set_again),
        "one": one_alone,
        "apart": apart,
        "reading": reading,
        "mixed": mixed,
        "export": _error(lambda: model.export(here.folder / "exported", verbose=False)),
        "called": float(np.abs(np.asarray(outputs) - predicted).max()),
    }


READ_IN = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_predict_begin",
    "on_predict_batch_begin",
    "on_predict_batch_end",
    "on_predict_end",
)


def read_in_batches(here):
    """What each rank says if a callback that one rank alone has reads, by its method and rank."""
    strategy = here.make(sharding="parameters")
    model = _model(strategy)
    _fit(model)

    def error_of(name, reader):
        callback = keras.callbacks.Callback()
        setattr(callback, name, lambda *_, **__: model.layers[-1].kernel.numpy())
        callbacks = [callback] if here.rank == reader else []
        if "predict" in name:
            return _error(lambda: model.predict(_data(), verbose=0, callbacks=callbacks))
        if "test" in name and reader == 0:
            return _error(lambda: model.evaluate(_data(), verbose=0, callbacks=callbacks))
        options = {"validation_data": _data(), "verbose": 0, "callbacks": callbacks}
        return _error(lambda: model.fit(_data(), **options))

    errors = {(name, reader): error_of(name, reader) for name in READ_IN for reader in (0, 1)}
    before = _weights(model)
    _fit(model)
    moved = max(np.abs(a - b).max() for a, b in zip(before, _weights(model), strict=True))
    return {"errors": errors, "moved": float(moved)}
