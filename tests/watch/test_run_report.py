"""RunReport: what it measures is true, and training is what it is without."""

import collections
import pathlib
import re
import shutil
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.log_messages import log_messages
from tfdist.callbacks import RunReport, run_report
from tfdist.watch import page, status

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SLOW = 0.05
PARTS = {"data_seconds", "compute_seconds", "exchange_seconds", "update_seconds"}


class OwnStep(keras.Model):
    """A model with a `train_step` of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Sleep(keras.layers.Layer):
    """Sleeps for 20 ms in training."""

    def call(self, inputs):
        def sleep(batch):
            time.sleep(0.02)
            return batch

        slept = tf.numpy_function(sleep, [inputs], inputs.dtype, stateful=False)
        return tf.ensure_shape(slept, inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


def model_of(strategy, make=None, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
        model = make() if make else keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.05, 0.9), "mse", **options)
    return model


def trained(strategy, callbacks, make=None, **options):
    """The weights, and the history of two epochs."""
    model = model_of(strategy, make, **options)
    given = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
    history = model.fit(X, Y, callbacks=callbacks, **given).history
    return model.get_weights(), history


@pytest.mark.parametrize(
    ("options", "compiled"),
    [
        ({}, {}),
        pytest.param({}, {"steps_per_execution": 2}, marks=pytest.mark.full),
        pytest.param({}, {"make": OwnStep}, marks=pytest.mark.full),
        ({"accumulation_steps": 2}, {}),
        pytest.param({}, {"run_eagerly": True}, marks=pytest.mark.full),
        pytest.param({"sharding": "optimizer"}, {}, marks=pytest.mark.full),
        pytest.param({"balance": True}, {}, marks=pytest.mark.full),
        ({"local": tfdist.LocalSGD(steps=2)}, {}),
        pytest.param({}, {"jit_compile": True}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_training_is_what_it_is_without(options, compiled, tmp_path):
    weights = []
    path = tmp_path / "report.html"
    for callbacks in ([], [RunReport(path)]):
        strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
        found, history = trained(strategy, callbacks, **compiled)
        weights.append(found)
    if "balance" not in options:  # whose parts follow from the clock
        assert all((a == b).all() for a, b in zip(*weights))
    one = tfdist.MirroredStrategy(DEVICES[:1])
    if "local" not in options:
        steps = options.get("accumulation_steps", 1)
        one = tfdist.MirroredStrategy(DEVICES[:1], accumulation_steps=steps)
        for a, b in zip(weights[1], trained(one, [], **compiled)[0]):
            np.testing.assert_allclose(a, b, atol=1e-6)
    expected = {"rest_seconds", "compute_seconds"} if "local" in options else PARTS
    assert expected <= set(history)
    assert all(len(history[name]) == 2 for name in expected)
    total = sum(history[name][-1] for name in {*expected, "between_seconds"})
    assert total == pytest.approx(history["step_seconds"][-1])
    assert all(history[name][-1] > 0 for name in expected)
    assert history["sent_bytes"] == [4 * sum(w.size for w in weights[0])] * 2
    assert "2 epochs" in path.read_text()


def _graph(model):
    """What a train step of `model` does: how many operations of each kind."""
    strategy = model.distribute_strategy
    step = tf.function(lambda x, y: strategy.run(model.train_step, args=((x, y),)))
    definition = step.get_concrete_function(X[:8], Y[:8]).graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes)


def test_a_step_without_a_report_has_no_clock_in_it(two_replicas, tmp_path):
    model = model_of(two_replicas)
    graphs = []

    class Look(keras.callbacks.Callback):
        decides_in_batches = changes_variables = saves_alone = False

        def on_epoch_end(self, epoch, logs=None):
            graphs.append(_graph(self.model))

    for callbacks in ([], [RunReport(tmp_path / "report.html")], []):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[*callbacks, Look()])
    before, measured, after = graphs
    assert before == after
    assert "Timestamp" not in before
    assert measured["Timestamp"] == 1 + 3 * 2  # a begin, and three ends on each replica
    measured.subtract(before)
    assert sum(measured.values()) < 100


def test_waiting_for_data_and_computing_are_told_apart(two_replicas):
    def slow():
        for _ in range(5):
            time.sleep(0.02)
            yield X[:8], Y[:8]

    specs = (tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1]))
    data = tf.data.Dataset.from_generator(slow, output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(5))
    history = model_of(two_replicas).fit(data, verbose=0, callbacks=[RunReport()]).history
    assert max(PARTS, key=lambda name: history[name][0]) == "data_seconds"
    layers = [keras.Input((4,)), Sleep(), keras.layers.Dense(1)]
    _, history = trained(two_replicas, [RunReport()], lambda: keras.Sequential(layers))
    assert max(PARTS, key=lambda name: history[name][1]) == "compute_seconds"
    assert history["compute_seconds"][1] > 0.02


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}], ids=str)
def test_one_replica_knows_its_parts_too(compiled, tmp_path):
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    path = tmp_path / "report.html"

    def make():
        return keras.Sequential([keras.Input((4,)), Sleep(), keras.layers.Dense(1)])

    weights, history = trained(strategy, [RunReport(path)], make, **compiled)
    expected, _ = trained(tfdist.MirroredStrategy(DEVICES[:1]), [], make, **compiled)
    assert all((a == b).all() for a, b in zip(weights, expected))
    assert set(history) >= PARTS
    assert 0.02 < history["compute_seconds"][1] < history["step_seconds"][1]
    assert 0 <= history["exchange_seconds"][1] < history["compute_seconds"][1]
    assert "samples per second" in path.read_text()


def test_a_step_that_xla_compiles_as_a_whole_is_not_divided(tmp_path):
    path = tmp_path / "report.html"
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    weights, history = trained(strategy, [RunReport(path)], jit_compile=True)
    expected, _ = trained(tfdist.MirroredStrategy(DEVICES[:1]), [], jit_compile=True)
    for own, other in zip(weights, expected):  # XLA adds up in the order of its threads
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-6)
    assert "rest_seconds" in history and "compute_seconds" not in history
    text = path.read_text()
    assert "XLA compiles it as a whole" in text and "parameter servers" not in text


class TwoOptimizers(keras.Model):
    """A model whose second update takes long to compute, after the first one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(1)

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 4))

    def call(self, x):
        return self.second(self.first(x))

    def compile(self, optimizer, loss):
        super().compile(optimizer, loss)
        self.other = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01))

    def train_step(self, data):
        x, _ = data
        for layer, optimizer in ((self.second, self.optimizer), (self.first, self.other)):
            with tf.GradientTape() as tape:
                predicted = self(x) if optimizer is self.optimizer else _slow(self(x))
                loss = tf.reduce_mean(tf.square(predicted))
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.variables)
        return {"loss": loss}


@tf.custom_gradient
def _slow(value):
    """`value`; its gradient takes `SLOW` seconds, and what needs the gradient waits for it."""

    def sleep(given, _):
        time.sleep(SLOW)
        return given

    def backward(upstream):
        # With `value` it is no function of constants, which TensorFlow would compute only once.
        slept = tf.numpy_function(sleep, [upstream, value], upstream.dtype, stateful=False)
        return tf.ensure_shape(slept, upstream.shape)

    return tf.identity(value), backward


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_the_second_optimizer_computes_is_no_exchange(replicas):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])

    def make():
        model = TwoOptimizers()
        model.build((None, 4))
        return model

    _, history = trained(strategy, [RunReport()], make)
    assert history["compute_seconds"][1] >= SLOW


def test_evaluation_is_not_measured(two_replicas):
    model = model_of(two_replicas)
    more = {"validation_data": (X, Y), "callbacks": [RunReport()]}
    model.fit(X, Y, batch_size=8, verbose=0, **more)
    test_step = tf.function(lambda x, y: two_replicas.run(model.test_step, args=((x, y),)))
    two_replicas.parts = object()
    try:
        graph = test_step.get_concrete_function(X[:8], Y[:8]).graph.as_graph_def()
    finally:
        two_replicas.parts = None
    functions = [node.op for f in graph.library.function for node in f.node_def]
    assert "Timestamp" not in {*functions, *(node.op for node in graph.node)}


def test_a_run_that_dies_leaves_its_report(two_replicas, tmp_path):
    path = tmp_path / "report.html"

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        trained(two_replicas, [RunReport(path), Fails()])
    text = path.read_text()
    assert "Epoch 1 of 2 is done" in text and "Had not ended" in text
    assert two_replicas.parts is None


def test_what_later_callbacks_log_is_shown(tmp_path):
    compression = tfdist.compression.TopK(0.3, min_bytes=0)
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=compression)
    path = tmp_path / "report.html"
    callbacks = [*strategy.callbacks(report=path), tfdist.callbacks.CompressionMonitor()]
    _, history = trained(strategy, callbacks)
    text = path.read_text()
    assert "compression_cosine" in text
    dense = 4 * (4 * 3 + 3 + 3 + 1)
    assert history["sent_bytes"][-1] == pytest.approx(dense / history["compression_ratio"][-1])
    assert f"{dense} B" in text


def test_logs_that_are_no_numbers_are_not_in_curves(two_replicas, tmp_path):
    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs |= {"a_text": "hello", "nothing": None, "a_number": np.float32(3.5)}
            logs |= {"of_classes": np.ones(3), "too_large": 10**400, 7: 0.5, None: 0.5}

    path = tmp_path / "report.html"
    _, history = trained(two_replicas, [Logs(), RunReport(path), Logs()])
    assert len(history["of_classes"]) == 2
    text = path.read_text()
    assert "a_number" in text and "3.5" in text
    assert not {"a_text", "nothing", "of_classes", "too_large"} & set(re.findall(r"\w+", text))


def test_pages_take_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch):
    now, written, page_ms, epoch_ms, epochs = [0], [], 15, 40, 12
    clock = types.SimpleNamespace(time=time.time, monotonic_ns=lambda: 10**6 * now[0])
    monkeypatch.setattr(run_report, "time", clock)

    def write(run, path):
        now[0] += page_ms
        written.append((len(run.epochs), run.has_ended))

    class Pass(keras.callbacks.Callback):
        decides_in_batches = changes_variables = saves_alone = False

        def on_epoch_begin(self, epoch, logs=None):
            now[0] += epoch_ms

    monkeypatch.setattr(page, "write", write)
    callbacks = [Pass(), RunReport(tmp_path / "report.html")]
    model = model_of(tfdist.MirroredStrategy(DEVICES[:1]))
    model.fit(X, Y, batch_size=40, epochs=epochs, verbose=0, callbacks=callbacks)
    first, *ends, last = written
    assert (first, ends[0], last) == ((0, False), (1, False), (epochs, True))
    assert len(ends) == 2  # the second one after 300 ms


def test_a_place_that_cannot_be_written_does_not_end_a_watched_training(
    two_replicas, tmp_path, monkeypatch
):
    monkeypatch.setenv("TFDIST_WATCH", str(tmp_path / "missing"))
    monkeypatch.setattr(status, "SECONDS", 0.0)
    with log_messages() as messages:
        _, history = trained(two_replicas, [])
    assert len(history["loss"]) == 2
    assert len([text for text in messages if "cannot be shown by" in text]) == 1


def test_tensorboard_gets_the_numbers_of_each_rank(two_replicas, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callbacks = [*two_replicas.callbacks(log_dir=tmp_path)]
    _, history = trained(two_replicas, callbacks)
    read = EventAccumulator(str(tmp_path / "ranks"))
    read.Reload()
    tags = read.Tags()["tensors"]
    assert {"run/step_seconds", "rank_0/compute_seconds", "rank_0/memory_bytes"} <= set(tags)
    values = [float(tf.make_ndarray(e.tensor_proto)) for e in read.Tensors("run/step_seconds")]
    np.testing.assert_allclose(values, history["step_seconds"], rtol=1e-6)


def test_one_replica_and_one_step_have_little_to_report(tmp_path):
    path = tmp_path / "report.html"
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    model = model_of(strategy)
    callbacks = strategy.callbacks(report=path)
    history = model.fit(X, Y, batch_size=40, verbose=0, callbacks=callbacks).history
    assert set(history) == {"loss"}
    assert "An epoch of two calls" in path.read_text()


def test_the_folder_of_a_report_is_made(two_replicas, tmp_path):
    path = tmp_path / "out" / "today" / "report.html"
    trained(two_replicas, two_replicas.callbacks(report=path))
    assert "2 epochs" in path.read_text()


@pytest.mark.parametrize("path", ["", "a_file/report.html", "a_file/more/report.html"])
def test_what_cannot_be_written_is_refused_before_training(path, two_replicas, tmp_path):
    (tmp_path / "a_file").touch()
    model = model_of(two_replicas)
    before = model.get_weights()
    with pytest.raises(ValueError, match="The report must be a file that can be written.*Received"):
        model.fit(X, Y, verbose=0, callbacks=[RunReport(tmp_path / pathlib.Path(path))])
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))


def test_a_report_that_fails_later_is_warned_of_and_training_goes_on(two_replicas, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()

    class Remove(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            shutil.rmtree(folder, ignore_errors=True)

    with log_messages() as messages:
        _, history = trained(two_replicas, [RunReport(folder / "report.html"), Remove()])
    assert len(history["loss"]) == 2
    assert len([text for text in messages if "report.html could not be written" in text]) == 3


def test_a_model_without_a_strategy_of_tfdist_is_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a model that was made in the scope"):
        model.fit(X, Y, verbose=0, callbacks=[RunReport()])


def test_a_report_and_other_monitors_measure_together(two_replicas):
    monitors = [RunReport(), tfdist.callbacks.StragglerMonitor(), RunReport()]
    _, history = trained(two_replicas, monitors)
    assert {"slowest_replica", "compute_seconds"} <= set(history)
    assert two_replicas.parts is None and two_replicas.clock is None
