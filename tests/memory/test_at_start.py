"""What `fit` says of memory and of Keras' distributions, before it begins."""

import random
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.memory import at_start
from tfdist.memory.batches import samples_of
from tfdist.options import Options

WIDTH = 512
WEIGHTS = 4 * WIDTH * WIDTH


def model_in(strategy, optimizer=keras.optimizers.Adam):
    with strategy.scope():
        dense = keras.layers.Dense(WIDTH, use_bias=False)
        model = keras.Sequential([keras.Input((WIDTH,)), dense])
        model.compile(optimizer(0.1), "mse")
    return model


def place(free, replicas=1, on_host=1, **options):
    return at_start.Place(Options(**options), replicas, on_host, free)


def said(free, *, built=False, **options):
    model = model_in(tf.distribute.get_strategy())
    if built:
        model.optimizer.build(model.trainable_variables)
    return at_start.what_does_not_fit(model, place(free, **options))


def test_gradients_and_slots_that_do_not_exist_yet_must_fit():
    assert said(13 * WEIGHTS) is None
    assert said(3.1 * WEIGHTS) is None
    assert "do not fit the memory of this host: 1 replica needs 3.1 MB more" in said(2 * WEIGHTS)


def test_slots_that_exist_need_no_more_memory():
    assert said(1.1 * WEIGHTS, built=True) is None
    assert "do not fit" in said(0.9 * WEIGHTS, built=True)


def test_replicas_of_a_host_share_its_memory():
    options = {"replicas": 4, "built": True}
    assert said(2.1 * WEIGHTS, **options) is None
    assert "2 replicas need" in said(3 * WEIGHTS, on_host=2, **options)


def test_the_first_sharding_that_fits_is_named():
    options = {"replicas": 4, "on_host": 4}
    text = said(9 * WEIGHTS, **options)  # 4 x (1 + 2 + 1) without, 4 x (1 + 0.5 + 0.25) with
    assert 'Try `sharding="optimizer"`, with which they fit. Received' in text
    assert "Try a machine with more memory. " in said(4 * WEIGHTS, **options)
    assert "Try a machine" in said(4 * WEIGHTS, sharding="optimizer", **options)
    options["accumulation_steps"] = 4  # 4 x 2.75 with "optimizer", 4 x 2 with "gradients"
    assert '`sharding="gradients"`' in said(9 * WEIGHTS, **options)


SHARED = {"replicas": 4, "on_host": 4}  # 16 x WEIGHTS without `sharding`


@pytest.mark.parametrize(
    "options",
    [{"compression": "fp16"}, {"local": tfdist.LocalSGD(8)}, {"exchange": "hierarchical"}],
)
def test_no_sharding_is_named_that_other_options_refuse(options):
    assert 'Try `sharding="optimizer"`' in said(9 * WEIGHTS, **SHARED)
    text = said(9 * WEIGHTS, **SHARED, **options)
    assert "Try a machine with more memory. Received" in text


def advice(model, free, **options):
    return at_start.what_does_not_fit(model, place(free * WEIGHTS, **SHARED, **options))


def of_layers(count, optimizer="adam", **options):
    layers = [keras.layers.Dense(WIDTH, use_bias=False) for _ in range(count)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(optimizer, "mse", **options)
    return model


def test_weights_in_parts_are_named_if_they_go_with_the_rest():
    # 20 layers: 4 x 20 x (1 + 0.5 + 0.25) with "optimizer"; 4 x (20 x (0.25 + 0.5) + 6 - 15), as
    # 15 of the 20 whole layers that are there are no longer needed, with "parameters".
    assert '`sharding="parameters"`, with which they fit' in advice(of_layers(20), 40)
    assert "Try a machine" in advice(of_layers(20, jit_compile=True), 40)
    assert "Try a machine" in advice(of_layers(20), 40, balance=True)
    assert '`sharding="optimizer"`' in advice(of_layers(20, jit_compile=True), 145)
    assert '`sharding="optimizer"`' in advice(of_layers(20), 145, balance=True)


def test_sharding_is_named_if_it_goes_with_the_optimizer():
    class Own(keras.optimizers.Lamb):
        pass

    # Each of four replicas owns 5 of 20 layers.
    assert '`sharding="optimizer"`' in advice(of_layers(20, keras.optimizers.Lamb()), 145)
    assert "Try a machine" in advice(of_layers(20, keras.optimizers.Lamb()), 40)
    assert "Try a machine" in advice(of_layers(20, Own()), 145)


def test_an_elastic_job_is_not_told_of_sharding():
    model = model_in(tf.distribute.get_strategy())
    elastic = at_start.Place(Options(), 4, 4, 9 * WEIGHTS, is_elastic=True)
    assert "Try a machine" in at_start.what_does_not_fit(model, elastic)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 0),
        ({"compression": "topk"}, 1),
        ({"compression": "fp16"}, 0),
        ({"compression": {"other": "topk"}}, 0),
        ({"compression": tfdist.compression.DGC(momentum=0.0)}, 2),
        ({"local": tfdist.LocalSGD(8)}, 1),
        ({"local": tfdist.LocalSGD(1)}, 0),
        ({"local": tfdist.DiLoCo(32)}, 2),
        ({"local": tfdist.DiLoCo(32, fragments=1, overlap=5)}, 3),
    ],
)
def test_what_options_keep_must_fit(options, kept):
    needed = 4 + kept  # gradients, sums, two slots
    assert said((needed + 0.01) * WEIGHTS, replicas=2, **options) is None
    text = said((needed - 0.01) * WEIGHTS, replicas=2, **options)
    assert f"1 replica needs {needed * WEIGHTS / 1e6:.1f} MB more" in text
    # They are made with the optimizer's state.
    assert said(2.01 * WEIGHTS, replicas=2, built=True, **options) is None


def test_with_overlap_error_feedback_keeps_what_was_sent():
    overlapping = tfdist.DiLoCo(32, overlap=5)
    feedback = tfdist.compression.QSGD(error_feedback=True)
    options = {"local": overlapping, "compression": feedback, "replicas": 2}
    needed = 4 + 1 + 4
    assert said((needed + 0.01) * WEIGHTS, **options) is None
    assert "do not fit" in said((needed - 0.01) * WEIGHTS, **options)


def test_the_gradient_of_an_embedding_has_few_rows():
    table = keras.layers.Embedding(WIDTH, WIDTH)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])
    model.compile("sgd", "mse")
    assert at_start.what_does_not_fit(model, place(0.5 * WEIGHTS)) is None
    model.compile("adam", "mse")  # whose slots are whole
    assert "do not fit" in at_start.what_does_not_fit(model, place(1.5 * WEIGHTS))


def test_what_a_launcher_says_is_not_asked_of_one_process():
    wrong = {"HOROVOD_RANK": "nonsense", "HOROVOD_SIZE": "2"}
    found = at_start.place_of(tfdist.MirroredStrategy(DEVICES[:2]), wrong)
    assert (found.replicas, found.on_host) == (2, 2)


def gpus_with(limits, monkeypatch):
    """A strategy of two GPUs, each of which has 3 MiB in use, and a limit, in MiB."""

    def configuration(number):
        return [tf.config.LogicalDeviceConfiguration(limits[number])] if limits[number] else None

    used = {"current": 3 * 2**20, "peak": 5 * 2**20}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [0, 1])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", configuration)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: used)
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{number}" for number in (0, 1)]
    return types.SimpleNamespace(
        extended=types.SimpleNamespace(worker_devices=names),
        processes=types.SimpleNamespace(may_change=False),
        num_replicas_in_sync=2,
        is_multi_process=False,
        options=Options(),
    )


def test_the_free_memory_of_gpus_is_known_where_the_user_has_set_limits(monkeypatch):
    found = at_start.place_of(gpus_with([9, 7], monkeypatch))
    assert (found.replicas, found.on_host, found.free) == (2, 1, 4 * 2**20)
    assert found.on_gpu
    assert at_start.place_of(gpus_with([9, None], monkeypatch)) is None


def test_what_does_not_fit_a_gpu_is_said():
    model = model_in(tf.distribute.get_strategy())

    def text(free, **options):
        return at_start.what_does_not_fit(
            model, at_start.Place(Options(**options), 2, 1, free, on_gpu=True)
        )

    assert text(4.1 * WEIGHTS) is None
    assert "do not fit the memory of a GPU: 1 replica needs 4.2 MB more" in text(3.9 * WEIGHTS)
    offloading = {"sharding": "optimizer", "offload": "optimizer"}  # slots are on the host
    assert text(1.6 * WEIGHTS, **offloading) is None
    assert "do not fit the memory of a GPU" in text(1.4 * WEIGHTS, **offloading)


def of_batch(samples, free, model=None, **options):
    model = model or model_in(tf.distribute.get_strategy())
    return at_start.what_does_not_fit(model, place(free, **options), samples)


def test_activations_must_fit_too():
    assert of_batch(WIDTH, 20 * WEIGHTS) is None
    text = of_batch(100 * WIDTH, 20 * WEIGHTS)  # an output is 100 times the weights
    assert "the activations of a batch do not fit the memory of this host: 1 replica" in text
    assert "activations are an estimate, which may be off by a quarter. Try a smaller batch" in text
    assert of_batch(None, 20 * WEIGHTS) is None
    assert "activations come on top" in of_batch(100 * WIDTH, 2 * WEIGHTS)


def test_replicas_divide_a_batch():
    samples, free = 50 * WIDTH, 200 * WEIGHTS
    assert of_batch(samples, free, replicas=2) is None
    assert "2 replicas need" in of_batch(2 * samples, free, replicas=2, on_host=2)
    assert of_batch(2 * samples, free, replicas=4) is None


def test_sharding_may_make_room_for_activations():
    text = of_batch(WIDTH, 18 * WEIGHTS, replicas=4, on_host=4)
    assert 'Try a smaller batch or `sharding="optimizer"`, with which they fit' in text


IN_PARTS = {"sharding": "parameters", "replicas": 2, "on_host": 2}


def test_activations_count_beside_weights_in_parts():
    assert of_batch(WIDTH, 20 * WEIGHTS, **IN_PARTS) is None
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding="parameters")
    texts = [
        of_batch(100 * WIDTH, 20 * WEIGHTS, model_in(where), **IN_PARTS)
        for where in (strategy, tf.distribute.get_strategy())
    ]
    assert "the activations of a batch do not fit the memory of this host: 2 replicas" in texts[0]
    assert "exchange" in texts[0] and "activations are an estimate" in texts[0]
    assert texts[0].partition("Received")[0] == texts[1].partition("Received")[0]


def test_activations_that_are_small_are_not_traced(monkeypatch):
    monkeypatch.setattr(at_start, "trace", lambda *_: pytest.fail("traced the model"))
    assert of_batch(8, 20 * WEIGHTS) is None
    assert of_batch(8, 20 * WEIGHTS, sharding="parameters", replicas=2) is None
    model = keras.Sequential([keras.layers.Dense(WIDTH)])
    model.compile("adam", "mse")
    model(np.ones((1, WIDTH)))
    any_length = keras.Sequential([keras.Input((None, WIDTH)), keras.layers.Dense(WIDTH)])
    any_length.compile("adam", "mse")
    assert of_batch(100 * WIDTH, 20 * WEIGHTS, any_length) is None


def test_a_batch_of_one_size_is_traced_once():
    model = model_in(tf.distribute.get_strategy())
    assert "activations are an estimate" in of_batch(100 * WIDTH, 20 * WEIGHTS, model)
    assert of_batch(100 * WIDTH, 20 * WEIGHTS, model) is None
    assert "activations are an estimate" in of_batch(200 * WIDTH, 20 * WEIGHTS, model)


class Drawn(keras.layers.Layer):
    """Draws while it is traced."""

    def call(self, inputs):
        return inputs * random.random() * np.random.rand() + keras.random.normal(inputs.shape[1:])


def test_a_trace_leaves_random_numbers_as_they_are():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), Drawn()])
    model.compile("adam", "mse")
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert "activations are an estimate" in of_batch(100 * WIDTH, 20 * WEIGHTS, model)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


class Untraceable(keras.layers.Layer):
    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs):
        raise TypeError("none of\nthese")


def test_a_model_that_cannot_be_traced_is_no_error():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), Untraceable()])
    model.compile("adam", "mse")
    text = of_batch(100 * WIDTH, 20 * WEIGHTS, model)
    assert "is not known, as a trace of the model fails" in text
    assert "TypeError" in text and "none of these" in text


def test_the_samples_of_a_batch():
    x = np.ones((100, 3))
    data = tf.data.Dataset.from_tensor_slices((x, x))
    assert samples_of({"x": x}) == 32
    assert samples_of({"x": x, "batch_size": 64}) == 64
    assert samples_of({"x": {"a": x[:20], "b": x[:20]}, "batch_size": 64}) == 20
    assert samples_of({"x": tf.constant(x)}) == 32
    assert samples_of({"x": data.batch(16, drop_remainder=True)}) == 16
    assert samples_of({"x": x, "batch_size": np.int64(8)}) == 8
    nothing = tf.data.Dataset.from_tensors((None, x))
    for given in (data.batch(16), nothing, [1, 2], None, iter([x]), np.float32(1), tf.constant(1)):
        assert samples_of({"x": given}) is None
    assert samples_of({}) is None
    assert samples_of({"x": x, "batch_size": "8"}) is None


def warnings_of_fit(strategy, free, monkeypatch, optimizer=keras.optimizers.Adam, samples=8):
    monkeypatch.setattr(at_start, "free_memory", lambda: free)
    model = model_in(strategy, optimizer)
    x = np.ones((samples, WIDTH))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x, samples, verbose=0)
    return [str(warning.message) for warning in caught]


def test_fit_warns_and_trains(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    text = "The gradients and the optimizer's state do not fit"
    assert not [t for t in warnings_of_fit(strategy, 100 * WEIGHTS, monkeypatch) if text in t]
    assert len([t for t in warnings_of_fit(strategy, WEIGHTS, monkeypatch) if text in t]) == 1
    assert not [t for t in warnings_of_fit(strategy, None, monkeypatch) if text in t]


@pytest.mark.parametrize("sharding", [None, "parameters"])
def test_fit_warns_of_activations(sharding, monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding)
    (text,) = [
        text
        for text in warnings_of_fit(strategy, 20 * WEIGHTS, monkeypatch, samples=16 * WIDTH)
        if "the activations of a batch" in text
    ]
    assert "2 replicas need" in text


def test_what_is_large_enough_is_not_looked_into(monkeypatch):
    monkeypatch.setattr(at_start, "slot_bytes", lambda _: pytest.fail("made an optimizer"))
    assert said(100 * WEIGHTS) is None


class NoCopy(keras.optimizers.SGD):
    @classmethod
    def from_config(cls, config, custom_objects=None):
        raise NotImplementedError("none of\nthese")


def test_an_optimizer_that_cannot_be_copied_stops_nothing(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    found = warnings_of_fit(strategy, 1, monkeypatch, NoCopy)
    (text,) = [t for t in found if "fits the memory is not known" in t]
    assert text.endswith("Received: NoCopy, which raises NotImplementedError: none of these")


def test_keras_own_distributions_are_idle():
    tfdist.MirroredStrategy(DEVICES[:1])  # whoever uses a strategy is told
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="does nothing with TensorFlow.*DataParallel"):
            model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    finally:
        keras.distribution.set_distribution(None)
