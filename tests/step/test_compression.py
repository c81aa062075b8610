"""Compression in the step path: error feedback, stages, clipping, accumulation, traffic."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.compression.replicas import VARIANTS, name_of
from tests.devices import DEVICES
from tfdist import compression
from tfdist.compression.choice import Choice
from tfdist.step import compression as stage
from tfdist.step.compression_units import plan_units
from tfdist.step.totals import Totals

SHAPES = {"net/a/kernel": (12, 40), "net/a/bias": (40,), "net/b/kernel": (40, 3)}
SPECS = [tf.TensorSpec(shape, tf.float32) for shape in SHAPES.values()]


def _strategy(replicas, choice=None, **options):
    return tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice, **options)


def _gradients(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype("float32") for shape in SHAPES.values()]


class Exchange:
    """A `CompressedExchange` and the gradients that two replicas hand in."""

    def __init__(self, choice, replicas=2, bucket_bytes=1000, specs=SPECS):
        self.strategy = _strategy(replicas)
        with self.strategy.scope():
            self.stage = stage.CompressedExchange(
                Choice.of(choice), specs, list(SHAPES)[: len(specs)], bucket_bytes, seed=0
            )
        self._step = tf.function(self._replica_step)

    def _replica_step(self, gradients, number):
        def step(gradients):
            return self.stage(gradients, number)

        return self.strategy.run(step, args=(gradients,))

    def __call__(self, number, by_replica):
        """The sums by variable, on each replica."""
        values = [
            self.strategy.experimental_distribute_values_from_function(
                lambda context, i=i: tf.constant(by_replica[context.replica_id_in_sync_group][i])
            )
            for i in range(len(SHAPES))
        ]
        found = self._step(values, tf.constant(number, tf.int64))
        return {i: self.strategy.experimental_local_results(v) for i, v in found.items()}

    def residual(self, variable):
        """What all replicas have kept of the gradient of a variable."""
        rows = self.stage.state._local_rows()
        return rows[f"residual_{variable}"].sum(axis=0)


_WITH_FEEDBACK = [
    compression.get({**c.get_config(), "error_feedback": True, "min_bytes": 0})
    for c in {c.name: c for c in reversed(VARIANTS)}.values()
    if c.name not in ("dgc", "none", "noop")
]


# test_compression_state and tests/compression have these too.
_NEAR_TO_OTHERS = ("onebit", "terngrad", "threshold")


def _with_feedback():
    for compressor in _WITH_FEEDBACK:
        marks = [pytest.mark.full] if compressor.name in _NEAR_TO_OTHERS else []
        yield pytest.param(compressor, marks=marks, id=name_of(compressor))


@pytest.mark.filterwarnings("ignore:.*more traffic")
@pytest.mark.parametrize("compressor", list(_with_feedback()))
def test_what_was_sent_and_what_is_kept_are_all_gradients(compressor):
    exchange = Exchange(compressor)
    sent = [np.zeros(shape) for shape in SHAPES.values()]
    gradients = [np.zeros(shape) for shape in SHAPES.values()]
    for number in range(4):
        by_replica = [_gradients(10 * number + replica) for replica in range(2)]
        for index, local in exchange(number, by_replica).items():
            np.testing.assert_array_equal(local[0], local[1])
            sent[index] += local[0].numpy()
        for index in range(len(SHAPES)):
            gradients[index] += by_replica[0][index] + by_replica[1][index]
    accepted = {index for index, spec in enumerate(SPECS) if compressor.accepts(spec)}
    assert {index for unit in exchange.stage.units for index in unit.bucket.indices} == accepted
    for index in accepted:
        total = sent[index] + exchange.residual(index)
        accuracy = 1e-5 * max(1.0, np.abs(sent[index]).max() / 10)
        np.testing.assert_allclose(total, gradients[index], atol=accuracy)


@pytest.mark.parametrize(
    ("choice", "messages"),
    [
        ({"kernel": compression.PowerSGD(2, min_bytes=0)}, 2),  # the factors, one after the other
        ({"kernel": compression.SignSGD(min_bytes=0)}, 2),  # a sum beside what is gathered
        ({"kernel": compression.PowerSGD(2, min_bytes=0, start_step=1)}, 1 + 2),  # of both stages
    ],
)
def test_small_gradients_that_are_not_compressed_take_no_message_of_their_own(
    choice, messages, monkeypatch
):
    counted = []
    exchange = Exchange(choice, bucket_bytes=100_000)
    real = stage.wire.all_reduce
    monkeypatch.setattr("tfdist.step.exchange.all_reduce", lambda v: counted.append(v) or real(v))
    monkeypatch.setattr(stage.wire, "all_reduce", lambda v: counted.append(v) or real(v))
    gradients = [_gradients(0), _gradients(1)]
    for number in range(2):
        found = exchange(number, gradients)
        expected = gradients[0][1] + gradients[1][1]
        np.testing.assert_allclose(found[1][0], expected, rtol=1e-6)
        np.testing.assert_array_equal(found[1][0], found[1][1])
    assert len(counted) == 2 * messages  # by each of two replicas


def test_small_variables_and_those_of_other_patterns_travel_as_they_are():
    choice = {"a/*": compression.TopK(0.1, min_bytes=200), "b/*": None}
    units = Exchange(choice).stage.units
    assert [unit.bucket.indices for unit in units] == [(0,)]
    choice = {"bias": "int8", "*": compression.SignSGD(min_bytes=0)}
    units = Exchange(choice).stage.units
    assert [(unit.compressor.name, unit.bucket.indices) for unit in units] == [
        ("signsgd", (0,)),
        ("signsgd", (2,)),
    ]


def test_variables_share_a_bucket_or_have_one_each():
    together = Exchange(compression.TopK(0.1, min_bytes=0), bucket_bytes=10_000).stage.units
    assert [unit.bucket.indices for unit in together] == [(0, 1, 2)]
    apart = Exchange(compression.PowerSGD(1, min_bytes=0), bucket_bytes=10_000).stage.units
    assert [unit.bucket.indices for unit in apart] == [(0,), (2,)]


def test_before_its_start_a_compressor_changes_nothing():
    exchange = Exchange(compression.SignSGD(start_step=3, min_bytes=0))
    gradients = [_gradients(replica) for replica in range(2)]
    for number in range(5):
        found = exchange(number, gradients)
        exact = [np.array_equal(found[i][0], gradients[0][i] + gradients[1][i]) for i in found]
        assert all(exact) if number < 3 else not any(exact)


def test_two_replicas_with_other_gradients_give_another_sum():
    found = Exchange(compression.Int8(min_bytes=0))(0, [_gradients(0), _gradients(1)])
    for index, local in found.items():
        expected = _gradients(0)[index] + _gradients(1)[index]
        np.testing.assert_allclose(local[0], expected, atol=0.05)


def test_random_numbers_differ_by_step_and_replica_and_not_by_run():
    compressor = compression.TernGrad(min_bytes=0)
    runs = [Exchange(compressor), Exchange(compressor)]
    gradients = [_gradients(0), _gradients(0)]
    first, again = (run(0, gradients)[0][0].numpy() for run in runs)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, runs[0](1, gradients)[0][0].numpy())
    top = np.abs(first).max()
    assert ((first != 0) & (np.abs(first) < top)).any()  # only one of the two drew ±1


# --- in training ----------------------------------------------------------------------------------


def _model(strategy, optimizer=lambda: keras.optimizers.SGD(0.1)):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(40, "relu"), keras.layers.Dense(3)]
        )
        model.compile(optimizer=optimizer(), loss="mse")
    return model


_RANDOM = np.random.default_rng(0)
X, Y = _RANDOM.normal(size=(64, 12)), _RANDOM.normal(size=(64, 3))


def _fit(model, epochs=2, batch=16, rows=slice(None)):
    model.fit(X[rows], Y[rows], batch, epochs=epochs, shuffle=False, verbose=0)
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


def test_one_compressed_exchange_for_all_micro_batches():
    choice = compression.TopK(0.2, min_bytes=0)
    once = _fit(_model(_strategy(2, choice)), batch=32)
    # Each replica gets the same samples as in the batch of 32: its first and its last 16.
    rows = np.arange(64).reshape(2, 2, 2, 8).swapaxes(1, 2).ravel()
    accumulated = _fit(_model(_strategy(2, choice, accumulation_steps=2)), rows=rows)
    np.testing.assert_allclose(accumulated, once, atol=1e-6)


def test_clipping_sees_the_decompressed_global_gradient():
    choice = compression.TopK(0.2, min_bytes=0)
    strategy = _strategy(2, choice)
    model = _model(strategy, lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.01))
    before = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
    change = _fit(model, epochs=1, batch=64) - before
    # A fifth of the gradient was sent, and the clipped update has the norm that was asked for.
    assert 0 < np.count_nonzero(change) < 0.5 * change.size
    np.testing.assert_allclose(np.linalg.norm(change), 0.1 * 0.01, rtol=1e-4)


@pytest.mark.full
def test_several_steps_per_execution_and_a_start_change_nothing():
    choice = compression.PowerSGD(1, min_bytes=0, start_step=3)
    one_by_one = _fit(_model(_strategy(2, choice)))
    strategy = _strategy(2, choice)
    with strategy.scope():
        model = _model(strategy)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", steps_per_execution=4)
    np.testing.assert_allclose(_fit(model), one_by_one, atol=1e-6)


def _words(strategy, momentum=0.0):
    """A model whose first layer has sparse gradients, trained."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Embedding(50, 8), keras.layers.Flatten(), keras.layers.Dense(20)]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1, momentum), loss="mse")
    words = np.random.default_rng(0).integers(0, 50, (32, 4))
    model.fit(words, np.ones((32, 20)), 8, epochs=2, shuffle=False, verbose=0)
    return model


def _weights(model):
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


@pytest.mark.full
@pytest.mark.parametrize(("min_bytes", "warmup_steps"), [(0, 0), (1024, 8)])
def test_dgc_with_everything_sent_is_momentum(min_bytes, warmup_steps):
    choice = compression.DGC(1.0, min_bytes=min_bytes, warmup_steps=warmup_steps, start_step=3)
    expected = _fit(_model(_strategy(2), lambda: keras.optimizers.SGD(0.1, momentum=0.9)), epochs=3)
    np.testing.assert_allclose(_fit(_model(_strategy(2, choice)), epochs=3), expected, atol=1e-6)
    # Small variables and sparse gradients have the momentum, too.
    expected = _weights(_words(_strategy(2), 0.9))
    found = _weights(_words(_strategy(2, choice)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_dgc_leaves_no_variable_without_momentum():
    choice = {"a/*": compression.DGC(0.1), "*": "fp16"}
    with pytest.raises(ValueError, match=r"DGC\(1.0\).*no momentum for \['net/b/kernel'\]"):
        Exchange(choice)
    Exchange({**choice, "*": compression.DGC(1.0)})
    Exchange({**choice, "a/*": compression.DGC(0.1, momentum=0.0)})


def test_dgc_forgets_the_momentum_of_what_it_sent():
    exchange = Exchange(compression.DGC(0.3, momentum=0.5, min_bytes=0))
    exchange(0, [_gradients(0), _gradients(1)])
    rows = exchange.stage.state._local_rows()
    for index, gradient in enumerate(zip(_gradients(0), _gradients(1))):
        velocity, unsent = (rows[f"{name}_{index}"] for name in ("velocity", "unsent"))
        sent = unsent == 0
        assert 0.2 < sent.mean() < 0.4
        np.testing.assert_array_equal(velocity[sent], 0)
        np.testing.assert_array_equal(velocity[~sent], np.stack(gradient)[~sent])


def test_what_is_compressed_is_not_sent_a_second_time():
    strategy = _strategy(2)
    options = tfdist.Options(compression=compression.Noop(not_training=True, min_bytes=0))
    with strategy.scope():
        totals = Totals(options, SPECS, list(SHAPES))

    @tf.function
    def step():
        def of_replica():
            gradients = [tf.ones(spec.shape) for spec in SPECS]
            packing = totals.packing(gradients, accumulates=False)
            number = tf.constant(0, tf.int64)
            return totals.sum(packing, packing.pack(gradients), number)

        return strategy.run(of_replica)

    for value in step():
        assert not strategy.experimental_local_results(value)[0].numpy().any()
    operations = step.get_concrete_function().graph.get_operations()
    assert not [op for op in operations if op.type == "AddN"]


@pytest.mark.parametrize("replicas", [2, 3])
def test_large_finite_gradients_have_a_finite_sum(replicas):
    large = [[np.full(spec.shape, 4e4, "float32") for spec in SPECS]] * replicas
    for compressor in (compression.FP16(min_bytes=0), compression.BF16(min_bytes=0)):
        for local in Exchange(compressor, replicas=replicas)(0, large).values():
            assert np.isfinite(local[0]).all()


@pytest.mark.full
@pytest.mark.parametrize(
    "compressor", [compression.TopK(0.1), compression.SignSGD(scale="bucket"), compression.DGC(0.1)]
)
def test_what_was_unsent_of_a_variable_waits_while_it_has_no_gradient(compressor):
    strategy = _strategy(2)
    with strategy.scope():
        stepped = stage.CompressedExchange(
            Choice.of({"*": compression.get({**compressor.get_config(), "min_bytes": 0})}),
            SPECS,
            list(SHAPES),
            100_000,
            seed=0,
        )
    gradients = [tf.constant(g) for g in _gradients(0)]

    def run(given, number):
        step = tf.function(
            lambda: strategy.run(lambda: stepped(given, tf.constant(number, tf.int64)))
        )
        return step()

    run(gradients, 0)
    before = stepped.state._local_rows()
    found = run([*gradients[:2], None], 1)
    assert set(found) == {0, 1}
    after = stepped.state._local_rows()
    for key in before:
        waits = np.array_equal(after[key], before[key])
        assert waits == key.endswith("_2")


def test_dgc_warms_up_in_four_parts():
    stages = compression.DGC(0.001, warmup_steps=40, start_step=10).stages()
    assert [(first, c.ratio) for first, c in stages] == [
        (0, 1.0),
        (10, 0.25),
        (20, 0.0625),
        (30, 0.015625),
        (40, 0.004),
        (50, 0.001),
    ]
    stages = compression.DGC(0.05, warmup_steps=40).stages()
    assert [(first, c.ratio) for first, c in stages] == [(0, 0.25), (10, 0.0625), (20, 0.05)]
    stages = compression.DGC(0.5, warmup_steps=40).stages()
    assert [(first, c.ratio) for first, c in stages] == [(0, 0.5)]


def test_an_overflow_skips_the_step_on_all_replicas_and_keeps_the_state():
    strategy = _strategy(2, compression.TopK(0.2, min_bytes=0))
    keras.config.set_dtype_policy("mixed_float16")
    model = _model(strategy)
    _fit(model, epochs=1)
    optimizer = model.optimizer
    before = optimizer.compression_state._local_rows(), model.get_weights()
    x = X.copy()
    x[0] = 1e9
    model.train_on_batch(x, Y)
    after = optimizer.compression_state._local_rows(), model.get_weights()
    for key, rows in before[0].items():
        np.testing.assert_array_equal(after[0][key], rows)
    for old, new in zip(before[1], after[1]):
        np.testing.assert_array_equal(old, new)


def test_what_is_no_number_reaches_the_weights():
    model = _model(_strategy(2, compression.TopK(0.01, min_bytes=0)))
    x = X.copy()
    x[0] = np.nan
    model.train_on_batch(x, Y)
    assert np.isnan(model.get_weights()[0]).any()


@pytest.mark.parametrize(("name", "units"), [("fp16", 8), ("bf16", 8), ("int8", 1)])
def test_what_rounds_each_element_comes_in_small_units(name, units):
    """So the first payload of a small model leaves early in the backward pass."""
    specs, paths = [tf.TensorSpec([256, 256])] * 8, [f"{place}/kernel" for place in range(8)]
    assert len(plan_units(Choice.of(name), specs, paths, 4 * 2**20)) == units


@pytest.mark.parametrize(
    "compressor",
    [
        compression.SignSGD(scale="bucket"),
        pytest.param(compression.TopK(0.2), marks=pytest.mark.full),
        pytest.param(compression.Int8(), marks=pytest.mark.full),
    ],
)
def test_sparse_gradients_travel_as_they_are_and_no_zeros_in_their_stead(compressor):
    choice = {"*": compression.get({**compressor.get_config(), "min_bytes": 0})}
    together = _words(_strategy(2, choice))
    apart = _words(_strategy(2, {"embedding*": None, **choice}))
    np.testing.assert_array_equal(_weights(together), _weights(apart))
    stages = [model.optimizer.compressed for model in (together, apart)]
    assert [unit.bucket.indices for unit in stages[0].units] == [(0, 1, 2)]
    assert [unit.bucket.indices for unit in stages[0].in_use] == [(1, 2)]
    assert stages[0].in_use[0].wire_bytes == stages[1].units[0].wire_bytes
    if compressor.error_feedback:
        rows = stages[0].state._local_rows()
        assert not rows["residual_0"].any()
        assert rows["residual_1"].any()


@dataclasses.dataclass(frozen=True)
class Own(compression.Compressor):
    """A compressor as a user might write it, with mistakes."""

    name = "own"

    said: int = 4
    sent: int | None = 1
    kept: bool = False

    def init(self, spec):
        return {"kept": tf.zeros([spec.shape[0] // 2])} if self.kept else {}

    def encode(self, gradient, state, step):
        flat = tf.reshape(gradient, [-1])
        return (flat[: self.sent] if self.sent else flat[flat > 0],), state

    def decode(self, payload, spec):
        return tf.fill(spec.shape, payload[0][0])

    def wire_bytes(self, spec):
        return self.said


def test_a_compressor_that_misstates_what_it_sends_is_refused():
    gradients = [_gradients(0), _gradients(1)]
    Exchange(Own(min_bytes=0))(0, gradients)
    with pytest.raises(ValueError, match=r"Own\(.*: 4\. Received: wire_bytes=3"):
        Exchange(Own(said=3, min_bytes=0))(0, gradients)
    with pytest.raises(ValueError, match="must have static shapes.*Received: Tensor"):
        Exchange(Own(sent=None, min_bytes=0))(0, gradients)


def test_a_state_by_length_needs_gradients_of_all_variables():
    strategy = _strategy(2)
    with strategy.scope():
        choice = Choice.of(Own(kept=True, min_bytes=0))
        stepped = stage.CompressedExchange(choice, SPECS, list(SHAPES), 100_000, seed=0)
    gradients = [tf.constant(g) for g in _gradients(0)]
    number = tf.constant(0, tf.int64)
    strategy.run(lambda: stepped(gradients, number))
    with pytest.raises(ValueError, match="per_tensor = True.*Received: state {'kept': "):
        strategy.run(lambda: stepped([*gradients[:2], None], number))


def test_a_compression_of_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="none of these.*the largest has 1920 bytes.*TopK"):
        Exchange(compression.TopK(0.1, min_bytes=2000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Exchange("none")


def test_an_unwrapped_optimizer_is_refused_in_a_loop():
    strategy = _strategy(2, "topk")
    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])
    step = tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.ones([1])], [variable])))
    with pytest.raises(ValueError, match="not wrapped.*Received: SGD"):
        step()


def test_gathering_more_than_without_compression_is_warned_of():
    with pytest.warns(UserWarning, match="TopK.*more traffic among 4 replicas.*pays up to 3"):
        Exchange(compression.TopK(0.5, min_bytes=0), replicas=4)
    warming_up = compression.DGC(0.01, momentum=0.0, warmup_steps=8, min_bytes=0)
    with pytest.warns(UserWarning, match=r"DGC\(.*ratio=0.25,.*more traffic among 4 replicas"):
        Exchange(warming_up, replicas=4, specs=[tf.TensorSpec([2], tf.float32)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*more traffic")
        Exchange(compression.TopK(0.1, min_bytes=0), replicas=4)


def test_the_configuration_of_the_optimizer_has_the_compression():
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="topk")
    again = tfdist.DistributedOptimizer.from_config(optimizer.get_config())
    assert again.options.compression == Choice.of("topk")
