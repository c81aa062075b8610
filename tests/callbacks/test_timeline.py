"""Timeline: what the replicas do in some steps, as events with times."""

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.log_messages import log_messages
from tfdist.callbacks import Timeline
from tfdist.callbacks.trace import events_of
from tfdist.engines.clocks import Clock
from tfdist.step.spans import BEGIN, COMPUTED, Point

_US = 1e6  # microseconds in a second


class Delay(keras.layers.Layer):
    """Sleeps where inputs are negative; one replica does not wait until another one has slept."""

    def call(self, inputs):
        def sleep(batch):
            if batch.min() < 0:
                time.sleep(0.05)
            return batch

        slept = tf.numpy_function(sleep, [inputs], inputs.dtype, stateful=False)
        return tf.ensure_shape(slept, inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


def model_of(strategy, **options):
    with strategy.scope():
        layers = [Delay(), keras.layers.Dense(512), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(1e-3), "mse", **options)
    return model


def batches(slow=None, waits=0.0, count=6):
    """Batches of 8 for two replicas, of which one has negative inputs; each takes its time."""
    x = np.arange(1.0, 9.0, dtype="float32")[:, None]
    if slow is not None:
        x[4 * slow : 4 * slow + 4] *= -1

    def generate():
        for _ in range(count):
            time.sleep(waits)
            yield x.copy(), x.copy()  # TensorFlow may compute in the memory of what it is given

    specs = (tf.TensorSpec([8, 1]), tf.TensorSpec([8, 1]))
    data = tf.data.Dataset.from_generator(generate, output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(count))


def trace(model, data, path, steps=(2, 4), **options):
    model.fit(data, verbose=0, shuffle=False, callbacks=[Timeline(path, steps)], **options)
    return json.loads(path.read_text())


def spans_of(found, name):
    """The spans of a name, by replica and step."""
    return {
        (event["tid"] // 100, event["args"]["step"]): event
        for event in found["traceEvents"]
        if event["ph"] == "X" and event["name"] == name
    }


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}])
def test_the_slow_replica_computes_longer(slow, options, two_replicas, tmp_path):
    found = trace(model_of(two_replicas, **options), batches(slow), tmp_path / "trace.json")
    computed = spans_of(found, "compute")
    assert set(computed) == {(replica, step) for replica in (0, 1) for step in (2, 3)}
    for step in (2, 3):
        assert computed[slow, step]["dur"] > 0.05 * _US
    if not options:  # eagerly, one replica runs after the other
        assert min(computed[1 - slow, step]["dur"] for step in (2, 3)) < 0.05 * _US


def test_the_wait_for_slow_data_is_seen(two_replicas, tmp_path):
    data = batches(waits=0.1)
    found = trace(model_of(two_replicas), data, tmp_path / "trace.json")
    waits = spans_of(found, "wait for data")
    assert len(waits) == 4
    assert all(event["dur"] > 0.05 * _US for event in waits.values())
    assert all(event["dur"] < 0.05 * _US for event in spans_of(found, "compute").values())


def test_parts_are_in_their_step_and_in_order(two_replicas, tmp_path):
    begun = time.time()
    found = trace(model_of(two_replicas), batches(0), tmp_path / "trace.json")
    steps, parts = spans_of(found, "step"), ("wait for data", "compute", "update")
    assert len(steps) == 4
    for key, step in steps.items():
        assert begun * _US < step["ts"] < time.time() * _US
        own = [spans_of(found, name)[key] for name in parts]
        for before, after in zip(own, own[1:]):
            assert before["ts"] + before["dur"] <= after["ts"] + 1
        assert own[0]["ts"] == step["ts"]
        assert own[-1]["ts"] + own[-1]["dur"] <= step["ts"] + step["dur"] + 1
        exchanged = spans_of(found, "exchange 0")[key]
        assert step["ts"] <= exchanged["ts"]
        assert exchanged["ts"] + exchanged["dur"] <= own[-1]["ts"] + 1
    assert steps[0, 2]["ts"] + steps[0, 2]["dur"] <= steps[0, 3]["ts"] + 1
    assert found["metadata"] == {
        "steps": [2, 4],
        "clock_offset_seconds": [0.0],
        "largest_clock_error_seconds": 0.0,
    }


def test_steps_that_xla_compiles_are_noted_too(two_replicas, tmp_path):
    with two_replicas.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    found = trace(model, batches(), tmp_path / "trace.json")
    for name in ("step", "wait for data", "compute", "exchange 0", "update"):
        assert set(spans_of(found, name)) == {(r, step) for r in (0, 1) for step in (2, 3)}, name


def test_clocks_that_were_found_late_are_warned_of(two_replicas, tmp_path, monkeypatch):
    found_late = [Clock(0.0, 0.0021)]
    monkeypatch.setattr("tfdist.callbacks.timeline.clocks_of", lambda *_: found_late)
    with log_messages() as messages:
        trace(model_of(two_replicas), batches(), tmp_path / "trace.json")
    assert "trace.json are aligned to 2.1 ms, not to 1 ms" in messages[0]


def test_weights_are_those_without_it(two_replicas, tmp_path):
    keras.utils.set_random_seed(1)
    traced = model_of(two_replicas)
    trace(traced, batches(), tmp_path / "trace.json")
    keras.utils.set_random_seed(1)
    usual = model_of(two_replicas)
    usual.fit(batches(), verbose=0, shuffle=False)
    for ours, expected in zip(traced.get_weights(), usual.get_weights()):
        np.testing.assert_array_equal(ours, expected)
    assert two_replicas.spans is None


def test_steps_are_numbered_over_epochs_and_validation_has_none(two_replicas, tmp_path):
    path = tmp_path / "trace.json"
    data = {"epochs": 3, "validation_data": batches(count=3)}
    found = trace(model_of(two_replicas), batches(count=2), path, (1, 5), **data)
    for name in ("step", "compute", "exchange 0", "update"):
        assert set(spans_of(found, name)) == {(r, s) for r in (0, 1) for s in range(1, 5)}, name
    assert len([event for event in found["traceEvents"] if event["name"] == "update"]) == 2 * 4
    for key, update in spans_of(found, "update").items():
        step = spans_of(found, "step")[key]
        assert step["ts"] + step["dur"] <= update["ts"] + update["dur"] + 1


def test_with_accumulation_the_codec_runs_in_the_steps_that_update(tmp_path):
    options = {"accumulation_steps": 2, "compression": "fp16"}
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
    found = trace(model_of(strategy), batches(), tmp_path / "trace.json", (0, 6))
    assert len(spans_of(found, "compute")) == 12
    updating = {(replica, step) for replica in (0, 1) for step in (1, 3, 5)}
    for name in ("encode", "exchange of payloads 0", "decode", "update"):
        assert set(spans_of(found, name)) == updating, name


def test_a_run_that_is_too_short_says_so(two_replicas, tmp_path):
    with log_messages() as messages:
        found = trace(model_of(two_replicas), batches(), tmp_path / "trace.json", (6, 9))
    assert spans_of(found, "step") == {}
    assert any("training ended before step 6" in message for message in messages)


def test_one_replica_has_no_timeline(tmp_path):
    with log_messages() as messages:
        model = model_of(tfdist.MirroredStrategy(DEVICES[:1]))
        found = trace(model, batches(), tmp_path / "trace.json")
    assert spans_of(found, "step") == {}
    assert any("there is one replica, so the timeline" in message for message in messages)


def test_clocks_are_aligned_and_overlapping_exchanges_have_threads_of_their_own():
    times = {BEGIN: 10, "a begins": 20, "b begins": 30, "a ends": 40, COMPUTED: 45, "b ends": 50}
    times |= {"c begins": 60, "c ends": 70}
    points = [Point(1, 5, name, 1000 * at) for name, at in times.items()]
    events = [event for event in events_of(3, points, [8000], offset=2000) if event["ph"] == "X"]
    found = {event["name"]: (event["tid"], event["ts"], event["dur"]) for event in events}
    assert found == {
        "step": (100, 6.0, 62.0),
        "wait for data": (100, 6.0, 2.0),
        "compute": (100, 8.0, 35.0),
        "a": (101, 18.0, 20.0),
        "b": (102, 28.0, 20.0),
        "c": (101, 58.0, 10.0),
    }
    assert {event["pid"] for event in events} == {3}


def test_a_begin_that_is_noted_late_takes_no_time():
    times = [(BEGIN, 10), ("a ends", 20), ("a begins", 30), ("a begins", 40), ("a ends", 50)]
    points = [Point(0, 0, name, 1000 * at) for name, at in times]
    events = [event for event in events_of(0, points, [], 0) if event["name"] == "a"]
    assert [(event["ts"], event["dur"]) for event in events] == [(20.0, 0.0), (40.0, 10.0)]


@pytest.mark.parametrize("steps", [(3,), (3, 3), (-1, 2), (1.0, 2), "ab", None])
def test_other_steps_are_refused(steps):
    with pytest.raises(ValueError, match="must be two integers.* Received: steps="):
        Timeline("trace.json", steps)


def test_what_cannot_be_traced_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    several = model_of(tfdist.MirroredStrategy(DEVICES[:2]), steps_per_execution=2)
    with pytest.raises(ValueError, match="Received: steps_per_execution=2"):
        trace(several, batches(), path)
    with pytest.raises(ValueError, match="scope of MirroredStrategy.* Received: a model under"):
        trace(model_of(tf.distribute.get_strategy()), batches(), path)
    nowhere = model_of(tfdist.MirroredStrategy(DEVICES[:2]))
    for wrong in (tmp_path / "none" / "trace.json", tmp_path):
        with pytest.raises(ValueError, match="must be a file that can be written, in a folder"):
            trace(nowhere, batches(), wrong)
    with pytest.raises(ValueError, match="Only one tfdist.callbacks.Timeline at a time"):
        nowhere.fit(batches(), callbacks=[Timeline(path), Timeline(path)])
    assert nowhere.distribute_strategy.spans is None
    assert not path.exists()


class Failure(keras.callbacks.Callback):
    """Raises in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise RuntimeError("a failure")


def test_after_an_exception_steps_are_no_longer_noted(two_replicas, tmp_path):
    model = model_of(two_replicas)
    timeline = Timeline(tmp_path / "trace.json", (0, 100))
    watching = [timeline, tfdist.callbacks.StragglerMonitor()]
    with pytest.raises(RuntimeError, match="a failure"):
        model.fit(batches(), verbose=0, callbacks=[*watching, Failure()])
    assert two_replicas.spans is None and two_replicas.clock is None
    noted = len(timeline._spans.points)
    assert noted > 0
    model.fit(batches(), verbose=0)
    assert len(timeline._spans.points) == noted
    found = trace(model, batches(), tmp_path / "trace.json")
    assert len(spans_of(found, "step")) == 4


class Functions(keras.callbacks.Callback):
    """Keeps the train function of each step, and whether its strategy notes points."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_begin(self, batch, logs=None):
        noting = self.model.distribute_strategy.spans is not None
        self.found.append((self.model.train_function, noting))


def test_steps_after_the_last_one_are_those_without_it(two_replicas, tmp_path):
    functions = Functions()
    timeline = Timeline(tmp_path / "trace.json", (1, 3))
    model_of(two_replicas).fit(batches(), verbose=0, callbacks=[timeline, functions])
    made = [function for function, _ in functions.found]
    assert [noting for _, noting in functions.found] == [True] * 3 + [False] * 3
    assert made[0] is made[2] is not made[3] is made[5]
    assert len(spans_of(json.loads((tmp_path / "trace.json").read_text()), "step")) == 4


def test_sums_of_shards_are_seen_and_change_nothing(tmp_path):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding="optimizer")
    keras.utils.set_random_seed(1)
    traced = model_of(strategy)
    found = trace(traced, batches(), tmp_path / "trace.json")
    keras.utils.set_random_seed(1)
    usual = model_of(tfdist.MirroredStrategy(DEVICES[:2], sharding="optimizer"))
    usual.fit(batches(), verbose=0, shuffle=False)
    for ours, expected in zip(traced.get_weights(), usual.get_weights()):
        np.testing.assert_array_equal(ours, expected)
    scattered, gathered = spans_of(found, "reduce-scatter 0"), spans_of(found, "all-gather 0")
    updates = spans_of(found, "update")
    assert len(scattered) == len(gathered) == len(updates) == 4
    for key, update in updates.items():
        assert scattered[key]["ts"] + scattered[key]["dur"] <= update["ts"] + 1
        assert update["ts"] <= gathered[key]["ts"]
        assert gathered[key]["ts"] + gathered[key]["dur"] <= update["ts"] + update["dur"] + 1


def test_sums_of_rows_are_seen(two_replicas, tmp_path):
    with two_replicas.scope():
        model = keras.Sequential(
            [keras.Input((1,), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Flatten()]
        )
        model.compile("adam", "mse")
    x = np.arange(8, dtype="int32")[:, None]
    data = tf.data.Dataset.from_tensors((x, np.ones((8, 4), "float32"))).repeat(6)
    found = trace(model, data, tmp_path / "trace.json")
    assert len(spans_of(found, "exchange of rows")) == 4


class TwoOptimizers(keras.Model):
    """Updates two layers, one after the other, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(64), keras.layers.Dense(1)

    def compile(self, first, second):
        super().compile()
        self.of_first, self.of_second = first, second

    def call(self, inputs):
        return self.second(self.first(inputs))

    def train_step(self, data):
        x, y = data
        for layer, optimizer in ((self.first, self.of_first), (self.second, self.of_second)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(gradients, layer.trainable_variables)
        return {"loss": loss}


def test_each_of_several_optimizers_has_its_spans(two_replicas, tmp_path):
    with two_replicas.scope():
        model = TwoOptimizers()
        model(np.ones((1, 1), "float32"))
        model.compile(keras.optimizers.SGD(1e-3), keras.optimizers.SGD(1e-3))
    found = trace(model, batches(), tmp_path / "trace.json")
    names = [event["name"] for event in found["traceEvents"] if event["ph"] == "X"]
    assert names.count("exchange 0") == names.count("update") == 2 * 4
