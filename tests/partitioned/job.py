"""A chief with a cluster of its own, which trains with partitioned variables.

Usage: python -m tests.partitioned.job FOLDER CHECK...

Writes what the checks gave to FOLDER/results.json.
"""

import contextlib
import json
import os
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.compat import row_updates, stored_rows
from tfdist.parameter_server import partitions

ROWS, WIDTH = 9001, 4
_partitioners = tf.distribute.experimental.partitioners
_optimizers = keras.optimizers

# The same as on one device, with a sparse gradient (which Keras' centered RMSprop cannot take) and,
# with a regularizer of the table, a dense one.
OPTIMIZERS = {
    "sgd": lambda dense: _optimizers.SGD(0.1, clipvalue=0.01),
    "momentum": lambda dense: _optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda dense: _optimizers.Adam(0.01, amsgrad=True, global_clipnorm=0.1),
    "adamw": lambda dense: _optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda dense: _optimizers.Nadam(0.01),
    "adamax": lambda dense: _optimizers.Adamax(0.01),
    "rmsprop": lambda dense: _optimizers.RMSprop(0.01, momentum=0.5, centered=dense),
    "adagrad": lambda dense: _optimizers.Adagrad(0.1),
    "adadelta": lambda dense: _optimizers.Adadelta(1.0),
    "lion": lambda dense: _optimizers.Lion(0.01),
    "ftrl": lambda dense: _optimizers.Ftrl(0.1),
    "averaged": lambda dense: _optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
}


def _data():
    random = np.random.default_rng(0)
    ids = random.integers(0, 40, (64, 3)).astype("int32") * (ROWS // 40)
    ids[:5] = ROWS - 1
    return ids, ids.sum(axis=1, keepdims=True).astype("float32") / ROWS


def _model(optimizer, rows=ROWS, width=WIDTH, **options):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), dtype="int32")
    table = keras.layers.Embedding(rows, width, name="table", **options)
    hidden = keras.layers.Flatten()(table(inputs))
    hidden = keras.layers.Dense(5, activation="relu", kernel_constraint="non_neg")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def _fit(model, **options):
    inputs, targets = _data()
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    return model.fit(inputs, targets, **options).history


def _evaluate(model):
    inputs, targets = _data()
    return model.evaluate(inputs, targets, batch_size=16, verbose=0)


def _predict(model):
    return model.predict(_data()[0], batch_size=16, verbose=0)


def _state(model):
    return [np.asarray(variable.numpy(), "float64") for variable in model.optimizer.variables]


def _difference(some, others):
    assert len(some) == len(others)
    return float(max(np.abs(a - b).max() for a, b in zip(some, others)))


def _equality(resolver, names, dense):
    """What differs from one device, by optimizer: weights, state of the optimizer, history."""
    found = {}
    options = {"embeddings_regularizer": keras.regularizers.L2(0.001)} if dense else {}
    for name in names:
        one = _model(OPTIMIZERS[name](dense), **options)
        expected = _fit(one, epochs=2)
        strategy = tfdist.ParameterServerStrategy(
            resolver,
            _partitioners.FixedShardsPartitioner(2),
            staleness=tfdist.staleness.Synchronous(),
        )
        with strategy.scope():
            model = _model(OPTIMIZERS[name](dense), **options)
        history = _fit(model, epochs=2)
        found[name] = {
            "weights": _difference(one.get_weights(), model.get_weights()),
            "state": _difference(_state(one), _state(model)),
            "history": _difference(
                [np.array(expected[key]) for key in expected],
                [np.array(history[key]) for key in expected],
            ),
        }
    return found


def equality(resolver, folder):
    """One optimizer that has state and weight decay."""
    return _equality(resolver, ["adamw"], dense=False)


def sparse_equality(resolver, folder):
    """All optimizers, with sparse gradients of the table."""
    return _equality(resolver, OPTIMIZERS, dense=False)


def dense_equality(resolver, folder):
    """All optimizers, with dense gradients of the table."""
    return _equality(resolver, OPTIMIZERS, dense=True)


def files(resolver, folder):
    """Asynchronous training; what it saved, loaded elsewhere."""
    strategy = tfdist.ParameterServerStrategy(
        resolver, _partitioners.MinSizePartitioner(4096, max_shards=3)
    )
    with strategy.scope():
        model = _model("adam")
    checkpoints = keras.callbacks.ModelCheckpoint(folder / "last.keras")
    backup = keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
    _fit(model, epochs=2, callbacks=[checkpoints, backup])
    model.save_weights(folder / "only.weights.h5")
    optimizer = model.optimizer.unwrap()
    written = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "written"))
    fixed = tfdist.ParameterServerStrategy(resolver, _partitioners.FixedShardsPartitioner(2))
    whole = tfdist.ParameterServerStrategy(resolver)
    table = model.get_layer("table").embeddings.value
    slots = [v.value for v in model.optimizer.variables if "table_embeddings" in v.path]
    found = {
        "updates": int(model.optimizer.iterations.numpy()),
        "table": [part.device for part in table.variables],
        "slots": [[part.device for part in slot.variables] for slot in slots],
        "small": [v.path for v in model.weights if hasattr(v.value, "variables")],
        "loaded": {},
    }
    for name, scope in (("fixed", fixed.scope), ("whole", whole.scope), ("none", _no_scope)):
        with scope():
            loaded = keras.models.load_model(folder / "last.keras")
            weights, restored = _model("adam"), _model("adam")
            restored.optimizer.build(restored.trainable_variables)
        weights.load_weights(folder / "only.weights.h5")
        inner = getattr(restored.optimizer, "unwrap", lambda plain=restored: plain.optimizer)()
        checkpoint = tf.train.Checkpoint(model=restored, optimizer=inner)
        checkpoint.read(written).assert_existing_objects_matched()
        parts = getattr(loaded.get_layer("table").embeddings.value, "variables", [0])
        found["loaded"][name] = {
            "parts": len(parts),
            "weights": [
                _difference(other.get_weights(), model.get_weights())
                for other in (loaded, weights, restored)
            ],
            "state": [_difference(_state(other), _state(model)) for other in (loaded, restored)],
            "evaluate": _difference(_evaluate(loaded), _evaluate(model)),
            "predict": _difference([_predict(loaded)], [_predict(model)]),
        }
    with fixed.scope():
        resumed = _model("adam")
    backup = keras.callbacks.BackupAndRestore(folder / "backup")
    found["resumed"] = len(_fit(resumed, epochs=3, callbacks=[backup])["loss"])
    found["resumed_updates"] = int(resumed.optimizer.iterations.numpy())
    return found


@contextlib.contextmanager
def _no_scope():
    yield


@contextlib.contextmanager
def _as_a_large_table():
    """Lets the table count as large. Yields the sizes of what was read and written of variables."""
    sizes = []
    limits = [(stored_rows, "CHUNK_BYTES", 4096), (row_updates, "PIECE_BYTES", 20_000)]
    limits += [(row_updates, "LARGE_BYTES", 20_000), (partitions, "_COPIED_BYTES", 1)]

    def counted(function):
        def call(part, start, rest):
            result = function(part, start, rest)
            sizes.append((rest if result is None else result).nbytes)
            return result

        return call

    limits += [(stored_rows, name, counted(getattr(stored_rows, name))) for name in _IN_CHUNKS]
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    try:
        for module, name, value in limits:
            setattr(module, name, value)
        yield sizes
    finally:
        for module, name, value in before:
            setattr(module, name, value)


_IN_CHUNKS = ("_read", "_write")


def large(resolver, folder):
    """Equality and files of a table that counts as large; the sizes of what the chief had of it."""
    (folder / "large").mkdir()
    with _as_a_large_table() as sizes:
        found = {"equality": {}, "divided": {}}
        for name in ("sgd", "adamw"):
            with mock.patch.object(row_updates, "_rows_of", wraps=row_updates._rows_of) as divide:
                found["equality"] |= _equality(resolver, [name], dense=False)
            found["divided"][name] = divide.called
        found["files"] = files(resolver, folder / "large")
        found["bfloat16"] = _bfloat16(resolver, folder / "large" / "bfloat16.weights.h5")
    return {**found, "sizes": [len(sizes), max(sizes)]}


def _bfloat16(resolver, path):
    """What differs from a table of bfloat16 after loading its file: without parts, and with."""
    strategy = tfdist.ParameterServerStrategy(resolver, _partitioners.FixedShardsPartitioner(2))

    def make(seed):
        rows = keras.initializers.RandomNormal(seed=seed)
        table = keras.layers.Embedding(ROWS, WIDTH, rows, dtype="bfloat16")
        return keras.Sequential([keras.Input((3,), dtype="int32"), table])

    with strategy.scope():
        model, parts = make(1), make(2)
    one = make(3)
    model.save_weights(path)
    for other in (one, parts):
        other.load_weights(path)
    whole, *others = (np.float32(m.weights[0].numpy()) for m in (model, one, parts))
    return [_difference([other], [whole]) for other in others]


def large_equality(resolver, folder):
    """All optimizers, with sparse and with dense gradients of a table that counts as large."""
    with _as_a_large_table():
        return [_equality(resolver, OPTIMIZERS, dense) for dense in (False, True)]


def initial(resolver, folder):
    """Whether the parts of a variable begin with the values of the whole one, by initializer."""
    of = keras.initializers
    makers = {
        "uniform": lambda: of.RandomUniform(-1, 3, seed=6),
        "normal": lambda: of.RandomNormal(1, 2, seed=9),
        "truncated": lambda: of.TruncatedNormal(seed=1),
        "glorot": lambda: of.GlorotUniform(seed=2),
        "he": lambda: of.HeNormal(seed=3),
        "untruncated": lambda: of.VarianceScaling(distribution="untruncated_normal", seed=4),
        "generator": lambda: of.RandomUniform(seed=keras.random.SeedGenerator(4)),
        "zeros": of.Zeros,
        "constant": lambda: of.Constant(2.5),
        "array": lambda: of.Constant(np.arange(7.0)),
        "orthogonal": lambda: of.Orthogonal(seed=3),
        "function": lambda: _numbered,
        "own": lambda: _ByPart(),
    }
    strategy = tfdist.ParameterServerStrategy(resolver, _partitioners.FixedShardsPartitioner(3))
    found = {}
    for name, make in makers.items():
        kinds = ["float32"] if name == "orthogonal" else ["float32", "float16", "float64"]
        for dtype in [*kinds, *["bfloat16"][: len(kinds) - 1]]:
            one = keras.Variable(make(), shape=(1001, 7), dtype=dtype)
            with strategy.scope():
                parts = keras.Variable(make(), shape=(1001, 7), dtype=dtype)
            same = bool(np.array_equal(one.numpy(), parts.numpy()))
            found[f"{name}, {dtype}"] = [same, len(parts.value.variables)]
    return found


def _numbered(shape, dtype=None):
    return tf.cast(tf.reshape(tf.range(shape[0] * shape[1]), shape), dtype)


class _ByPart:
    """Computes the rows that it is asked for; the whole variable only without parts."""

    def __call__(self, shape, dtype=None, partition_shape=None, partition_offset=None):
        if partition_shape is None:
            return _numbered(shape, dtype)
        first = partition_offset[0] * shape[1]
        numbers = tf.range(first, first + partition_shape[0] * shape[1])
        return tf.cast(tf.reshape(numbers, partition_shape), dtype)


def refusal(resolver, folder):
    """The error for an optimizer that looks at whole variables; the updates by then."""
    strategy = tfdist.ParameterServerStrategy(resolver, _partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        model = _model(_optimizers.Adafactor())
    try:
        _fit(model)
    except ValueError as error:
        return [str(error), strategy.version]
    return None


def options(resolver, folder):
    """The updates and losses with options that look at gradients and values."""
    found = {}
    for name, given in {
        "compensated": {"staleness": tfdist.staleness.DelayCompensated(adaptive=True)},
        "accumulated": {"accumulation_steps": 2},
        "compressed": {"compression": {"kernel": "topk"}},
        "mixed_float16": {},
    }.items():
        strategy = tfdist.ParameterServerStrategy(
            resolver, _partitioners.MaxSizePartitioner(ROWS * WIDTH * 2), **given
        )
        keras.config.set_dtype_policy(name if "mixed" in name else "float32")
        with strategy.scope():
            model = _model(_optimizers.SGD(0.01))
        losses = _fit(model, epochs=3)["loss"]
        found[name] = [losses[0], losses[-1], strategy.version]
    keras.config.set_dtype_policy("float32")
    return found


def _sent_bytes():
    """What the loopback device of this network has sent."""
    lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()
    (numbers,) = [line.split(":")[1].split() for line in lines if line.strip().startswith("lo:")]
    return int(numbers[8])


def traffic(resolver, folder):
    """Bytes of a table in two parts, and those that a step with 48 ids sends."""
    return _traffic(resolver, {2: ["adam"]})


def more_traffic(resolver, folder):
    """The same without state of the optimizer, and without parts."""
    return _traffic(resolver, {1: ["sgd", "adam"], 2: ["sgd"]})


def _traffic(resolver, optimizers):
    """Bytes of a table, and of a step by optimizer and number of parts."""
    rows, width = 50_000, int(os.environ.get("WIDTH", "16"))
    found = {"table": 4 * rows * width}
    for parts, names in optimizers.items():
        strategy = tfdist.ParameterServerStrategy(
            resolver,
            _partitioners.FixedShardsPartitioner(parts),
            input="dynamic",
            snapshot_every=0,  # the first one passes through the chief
        )
        for name in names:
            with strategy.scope():
                model = _model(name, rows, width)
            _fit(model)
            before = _sent_bytes()
            _fit(model, epochs=5)
            sent = _sent_bytes() - before
            found[f"{name} {parts}"] = sent / 20
    return found


def main(folder, names):
    """Runs the checks."""
    with tfdist.cluster.local_cluster(workers=2, ps=2) as resolver:
        # What is made before TensorFlow has connected to the cluster would be lost.
        tfdist.ParameterServerStrategy(resolver)
        found = {name: globals()[name](resolver, folder) for name in names}
    (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
