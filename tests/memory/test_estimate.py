"""`tfdist.memory.estimate`: what is exact, what is divided, and what is refused."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from benchmarks.memory_cell import MODELS
from tests.devices import DEVICES
from tfdist import memory
from tfdist.memory import tracing

WIDTH = 64


def dense(optimizer="adam", **options):
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, use_bias=False)])
    model.compile(optimizer, "mse", **options)
    return model


WEIGHTS = 4 * WIDTH * WIDTH


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [("sgd", 0), ("adam", 2), (keras.optimizers.SGD(momentum=0.9), 1), ("rmsprop", 1)],
)
def test_slots_are_those_that_training_makes(optimizer, slots):
    found = memory.estimate(dense(optimizer), 32)
    assert (found.parameters, found.gradients, found.slots) == (WEIGHTS, WEIGHTS, slots * WEIGHTS)
    assert found.exchange == 0 and found.activations > 0
    assert found.total == sum((WEIGHTS * (2 + slots), found.activations))


def test_ema_and_frozen_layers_count():
    model = dense(keras.optimizers.Adam(use_ema=True))
    assert memory.estimate(model, 32).slots == 3 * WEIGHTS
    frozen = keras.layers.Dense(WIDTH, use_bias=False, trainable=False)
    both = keras.Sequential([model, frozen])
    both.compile("adam", "mse")
    found = memory.estimate(both, 32)
    assert (found.parameters, found.gradients, found.slots) == (2 * WEIGHTS, WEIGHTS, 2 * WEIGHTS)


def test_state_of_whole_variables_is_that_of_the_largest_share():
    layers = [keras.layers.Dense(units, use_bias=False) for units in (48, 16, 16)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    model.compile(keras.optimizers.Lamb(), "mse")
    sizes = [4 * 16 * 48, 4 * 48 * 16, 4 * 16 * 16]  # two own one each, and one has the third too
    for sharding in ("optimizer", "gradients"):
        found = memory.estimate(model, 32, sharding, 2, accumulation_steps=2)
        assert found.slots == 2 * (sizes[0] + sizes[2])
        assert found.gradients == 2 * sum(sizes)


def test_parts_and_sums_of_replicas():
    def parts(sharding, replicas, steps=1):
        found = memory.estimate(dense(), 32, sharding, replicas, accumulation_steps=steps)
        return tuple(n / WEIGHTS for n in (found.gradients, found.slots, found.exchange))

    assert parts(None, 4) == (1, 2, 1)
    assert parts("optimizer", 4) == (1, 0.5, 0.25)
    assert parts("optimizer", 4, 2) == (2, 0.5, 0.25)
    assert parts("gradients", 4, 2) == (1.25, 0.5, 0.25)
    assert parts("optimizer", 1) == (1, 2, 0)
    assert memory.estimate(dense(), 32, "optimizer", offload="optimizer").slots == 0


def chain(count, **options):
    layers = [keras.layers.Dense(WIDTH, use_bias=False, **options) for _ in range(count)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def in_parts(model, replicas=4, samples=32, **options):
    model.compile("adam", "mse", **options)
    return memory.estimate(model, samples, "parameters", replicas)


def test_weights_in_parts_need_six_whole_layers_at_a_time():
    model = chain(8)
    model.compile("adam", "mse")
    found = memory.estimate(model, 32, "parameters", 4, accumulation_steps=2)
    layer = WEIGHTS
    assert (found.parameters, found.gradients) == (2 * layer, 4 * layer)
    assert found.slots == 4 * layer
    # The weights of two layers, the gradients of three, and what one sum receives.
    assert found.exchange == 6 * layer
    assert memory.estimate(model, 32, "parameters", 1).parameters == 8 * layer
    assert in_parts(chain(1)).exchange == 4 * layer
    assert in_parts(chain(2)).exchange == 5 * layer


def test_the_largest_of_three_neighbours_counts():
    units = (WIDTH, 4 * WIDTH, WIDTH, WIDTH, WIDTH, WIDTH)
    layers = [keras.layers.Dense(n, use_bias=False) for n in units]
    found = in_parts(keras.Sequential([keras.Input((WIDTH,)), *layers]))
    assert found.exchange == (4 + 4 + 1) * WEIGHTS + 2 * 4 * WEIGHTS + 4 * WEIGHTS


def test_what_stays_whole_counts_whole():
    assert in_parts(chain(8, kernel_regularizer="l2")).exchange == (6 + 2 * 8) * WEIGHTS
    assert in_parts(chain(8), run_eagerly=True).exchange == 2 * 8 * WEIGHTS


def test_a_part_is_filled_up():
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1025, use_bias=False)])
    model.compile("adam", "mse")
    found = memory.estimate(model, 8, "parameters", 2)
    assert found.parameters == 4 * 4 * 1025  # four of seven rows


def test_a_table_that_is_looked_up_has_rows_of_gradients():
    table = keras.layers.Embedding(1000, WIDTH)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten()])
    found = in_parts(model, replicas=2, samples=8)
    rows = 4 * WIDTH * 3 * 4  # of the four samples of a replica
    assert found.gradients == rows
    assert found.exchange == 2 * 4 * WIDTH * 1000 + rows // 2


def test_activations_do_not_depend_on_where_weights_are():
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH, "relu") for _ in range(8))]
    )
    model.compile("adam", "mse")
    samples, replicas = 8192, 4
    whole = memory.estimate(model, samples, None, replicas)
    assert whole.activations > 4 * whole.gradients
    divided = memory.estimate(model, samples, "parameters", replicas)
    # The peak is at the beginning of the backward pass, when there are no gradients yet.
    peak = whole.gradients + whole.exchange + whole.activations
    assert divided.gradients + divided.activations == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("sharding", [None, "optimizer", "gradients"])
def test_optimizers_that_look_at_whole_variables_have_no_parts_of_weights(sharding):
    model = dense(keras.optimizers.Lamb())
    with pytest.raises(ValueError, match="leave `sharding` out.*Received: Lamb"):
        memory.estimate(model, 32, "parameters", 2)
    assert memory.estimate(model, 32, "parameters", 1).total > 0
    assert memory.estimate(model, 32, sharding, 2).total > 0


def test_an_optimizer_that_sharding_refuses_is_refused():
    class Own(keras.optimizers.Lamb):
        pass

    with pytest.raises(ValueError, match="Received: Own"):
        memory.estimate(dense(Own()), 32, "optimizer", 2)


class SomeRows(keras.layers.Layer):
    """Looks up as many rows as the data say."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(10, 4)
        self.table.build()

    def call(self, x):
        rows = self.table(tf.boolean_mask(x, x > 0))
        return tf.reduce_sum(rows, axis=0) + tf.zeros([x.shape[0], 4])

    def compute_output_spec(self, x):
        return keras.KerasTensor((x.shape[0], 4))


def test_what_depends_on_the_data_is_told():
    model = keras.Sequential([keras.Input((3,), dtype="int32"), SomeRows()])
    model.compile("adam", "mse")
    with pytest.warns(UserWarning, match="sizes that depend on the data.*Received: model='seq"):
        found = memory.estimate(model, 8)
    assert found.gradients == 0 and found.slots == 2 * 4 * 40


def test_activations_grow_with_the_samples_of_a_replica():
    sizes = [memory.estimate(dense(), 1024, replicas=n).activations for n in (1, 4)]
    assert sizes[0] == pytest.approx(4 * sizes[1], rel=0.2)
    assert sizes[0] >= 4 * WIDTH * 1024


def test_a_loss_over_many_classes_counts():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5000)])
    model.compile("sgd", "mse")
    logits = 4 * 5000 * 256
    assert memory.estimate(model, 256).activations >= 2 * logits


def test_half_precision_halves_activations():
    def found(policy):
        hidden = [keras.layers.Dense(512, activation="relu", dtype=policy) for _ in range(4)]
        model = keras.Sequential([keras.Input((512,)), *hidden])
        model.compile("sgd", "mse")
        return memory.estimate(model, 4096).activations

    assert 0.4 < found("mixed_float16") / found("float32") < 0.8


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(8)

    def call(self, inputs):
        return self.first(inputs["a"]) + self.second(inputs["b"])


def test_a_model_that_does_not_state_its_inputs():
    model = Subclassed()
    batch = {"a": np.ones((1, 4), "float32"), "b": np.ones((1, 6), "float32")}
    model(batch)
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="`inputs=`.*Received: model='subclassed'"):
        memory.estimate(model, 64)
    found = memory.estimate(model, 64, inputs=batch)
    assert found.parameters == 4 * (4 * 8 + 8 + 6 * 8 + 8)
    specs = {name: tf.TensorSpec((None, *value.shape[1:])) for name, value in batch.items()}
    assert memory.estimate(model, 64, inputs=specs) == found


def test_a_model_in_a_scope_is_estimated_as_one_outside():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding="optimizer")
    with strategy.scope():
        inside = dense()
    inside.fit(np.ones((8, WIDTH)), np.ones((8, WIDTH)), verbose=0)
    before = inside.get_weights()
    options = {"sharding": "optimizer", "replicas": 2}
    assert memory.estimate(inside, 32, **options) == memory.estimate(dense(), 32, **options)
    np.testing.assert_array_equal(before, inside.get_weights())


class Cached(keras.layers.Layer):
    """Keeps a tensor from its first call, as layers with tables do."""

    table = None

    def call(self, inputs):
        if self.table is None:
            with tf.init_scope():
                self.table = tf.ones((3, 4))
        return inputs * self.table[0]


def test_layers_with_tensors_and_tables_of_their_own_train_afterwards():
    normalization = keras.layers.Normalization()
    normalization.adapt(np.arange(8.0).reshape(2, 4))
    model = keras.Sequential([keras.Input((4,)), normalization, Cached(), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.layers[1].table = None
    assert memory.estimate(model, 16).activations > 0
    model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)


def test_no_graph_stays(monkeypatch):
    model, graphs, made = dense(), [], tracing.Walk

    def noted(graph, *others):
        graphs.append(weakref.ref(graph))
        return made(graph, *others)

    monkeypatch.setattr(tracing, "Walk", noted)
    for _ in range(3):
        memory.estimate(model, 8)
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 3


def test_in_a_scope_no_variable_is_made_for_the_strategy(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    made = []
    with strategy.scope(), tf.variable_creator_scope(lambda f, **k: made.append(1) or f(**k)):
        model = dense()
        before = len(made)
        memory.estimate(model, 16)
    assert before and len(made) == before


def test_nothing_of_the_model_changes():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    model.compile("adam", "mse")
    before = [variable.numpy() for variable in model.variables]
    memory.estimate(model, 16)
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())
    assert not model.optimizer.built


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: memory.estimate(keras.Sequential([keras.layers.Dense(1)]), 1), "must be built"),
        (
            lambda: memory.estimate(
                keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), 1
            ),
            "model.compile",
        ),
        (lambda: memory.estimate(dense(), 0), "batch_size=0"),
        (lambda: memory.estimate(dense(), 1, replicas=0), "replicas=0"),
        (lambda: memory.estimate(dense(), 1, "all", 2), "sharding='all'"),
        (lambda: memory.estimate(dense(), 1, accumulation_steps=0), "accumulation_steps=0"),
    ],
)
def test_what_cannot_be_estimated_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_inputs_of_any_size_are_refused():
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"known size.*Received: .*\(4, None, 3\)"):
        memory.estimate(model, 4)
    assert memory.estimate(model, 4, inputs=np.ones((1, 5, 3), "float32")).activations > 0


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_benchmark_can_be_estimated(name):
    model, *_ = MODELS[name]()
    model.compile("adam", "mse")
    small, large = (memory.estimate(model, samples) for samples in (64, 4096))
    assert large.activations > small.activations
    assert (small.parameters, small.slots) == (large.parameters, large.slots)


def test_it_is_shown_in_one_line():
    found = memory.Estimate(10**9, 10**6, 0, 0, 2 * 10**9)
    assert str(found) == "3.00 GB: parameters 1.00 GB, gradients 1.0 MB, activations 2.00 GB"
