"""What the table cannot tell of attributes: that instances have them, and what they mean."""

import contextlib
import random

import pytest

from tfdist import compat


def test_private_attributes_of_instances_exist():
    import keras

    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    assert len(layer._non_trainable_variables) == 2
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model._distribute_strategy is None
    assert model._initial_epoch is None
    model.compile(loss="mse", metrics=["mae"])
    assert (model._compile_loss.built, model._compile_metrics.built) == (False, False)
    assert keras.callbacks.CallbackList()._async_train in (True, False)
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    assert list(optimizer._trainable_variables) == model.trainable_variables
    assert len(optimizer._trainable_variables_indices) == 2


def test_unseeded_random_numbers_come_from_one_generator_by_name():
    import keras
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    from tfdist.compat import random_numbers

    keras.random.uniform(())
    generator = global_state.get_global_attribute(random_numbers._SEED_GENERATOR)
    assert generator is seed_generator.global_seed_generator()


@pytest.mark.parametrize("begins", [False, True])
def test_default_seeds_are_kept(begins):
    import keras

    keras.utils.set_random_seed(1)
    if begins:
        keras.random.uniform(())
    state = random.getstate()  # the generator takes its own seed from it
    with compat.default_seeds_kept():
        inside = float(keras.random.uniform(()))
    random.setstate(state)
    assert float(keras.random.uniform(())) == inside


def test_parts_know_the_variable_that_they_are_of():
    import tensorflow as tf

    parts = [tf.Variable([1.0]), tf.Variable([2.0, 3.0])]
    whole = compat.PartitionedVariable(parts, "whole")
    assert parts[0]._sharded_container() is whole
    assert [compat.place_of_part(v) for v in (*parts, tf.Variable(0.0))] == [0, 1, None]


def test_graphs_of_functions_and_captures_are_found():
    import tensorflow as tf

    assert tf.GradientTape()._recording is False
    outside = tf.Variable(2.0)
    inner = tf.function(lambda: outside * 2.0)

    @tf.function
    def outer():
        called = inner().op
        graph = compat.function_graph(called.graph, called.get_attr("f").name)
        (placeholder,) = graph.inputs
        assert compat.captured_tensor(placeholder).dtype == tf.resource
        assert compat.function_graph(called.graph, "none") is None
        return called.outputs[0]

    assert float(outer()) == 4.0


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_keras_steps_are_known_by_what_keras_runs(name):
    """They are the functions that Keras' trainer hands to `Strategy.run`."""
    import keras
    import numpy as np
    import tensorflow as tf

    seen = []

    class Strategy(tf.distribute.MirroredStrategy):
        def run(self, fn, *args, **kwargs):
            seen.append(compat.keras_step(fn))
            return super().run(fn, *args, **kwargs)

    strategy = Strategy(["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    x, y = np.ones((4, 2)), np.ones((4, 1))
    getattr(model, name)(x, **({} if name == "predict" else {"y": y}), verbose=0)
    step = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}[name]
    assert seen and all(found == (model, step) for found in seen)


def test_a_stateless_scope_is_left_and_entered_again():
    import keras

    with keras.StatelessScope() as scope:
        assert compat.stateless.stateless_scope() is scope
        with compat.outside_stateless_scope():
            assert compat.stateless.stateless_scope() is None
        assert compat.stateless.stateless_scope() is scope


def test_distributed_variables_are_read_as_numbers():
    import numpy as np
    import tensorflow as tf

    compat.install()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        variable = tf.Variable(2.5)
    assert (float(variable), int(variable), complex(variable)) == (2.5, 2, 2.5 + 0j)
    assert np.asarray(variable) == 2.5


def test_what_xla_must_compile_is_known_while_it_is_traced():
    import tensorflow as tf

    found = []

    def note():
        found.append(compat.is_in_xla())

    tf.function(tf.function(note), jit_compile=True)()
    tf.function(note)()
    note()
    assert found == [True, False, False]


def test_the_mark_for_xla_is_that_of_a_jit_scope():
    import tensorflow as tf

    @tf.function(autograph=False)
    def marked():
        with tf.xla.experimental.jit_scope():
            in_scope = tf.random.uniform(()).op
        other = tf.random.uniform(()).op
        before = set(other.node_def.attr)
        compat.compile_where_possible([other])
        (added,) = set(other.node_def.attr) - before
        assert in_scope.get_attr(added) is True
        assert other.get_attr(added) is True

    marked.get_concrete_function()


def test_the_error_of_replicas_that_meet_inside_of_a_function_is_known():
    import tensorflow as tf

    from tests.devices import DEVICES

    strategy = tf.distribute.MirroredStrategy(DEVICES[:2])

    def step():
        def exchanged():
            return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(()))

        with pytest.raises(RuntimeError) as caught:
            tf.function(exchanged, autograph=False)()
        assert compat.is_refused_meeting(caught.value)
        assert not compat.is_refused_meeting(RuntimeError("another one"))

    tf.function(lambda: strategy.run(step), autograph=False)()


@pytest.mark.parametrize("when_traced", [False, True])
def test_collective_operations_are_numbered_when_called_or_when_traced(when_traced):
    import tensorflow as tf
    from tensorflow.python.distribute import collective_util, cross_device_utils

    compat.install_collectives()
    keys = cross_device_utils.CollectiveKeys(group_key_start=100_000)  # no other test's group
    device, options = "/device:CPU:0", collective_util.Options()
    group = keys.get_group_key([device])
    launcher = cross_device_utils.CollectiveReplicaLauncher(group, 1, keys, device, options)

    @tf.function(autograph=False)
    def summed():
        if when_traced:
            compat.number_when_traced()
        return launcher.all_reduce(tf.ones([]))

    graph = summed.get_concrete_function().graph
    (key,) = (op.inputs[3] for op in graph.get_operations() if op.type == "CollectiveReduceV2")
    assert key.op.type == ("Const" if when_traced else "Placeholder")
    assert float(summed()) == 1.0


def test_a_strategy_makes_variables_where_it_is_told():
    import keras
    import tensorflow as tf

    from tests.devices import DEVICES

    strategy = tf.distribute.MirroredStrategy(DEVICES[1:3])
    with strategy.scope():
        first = keras.Variable([1.0, 2.0], name="first")
        with compat.variables_on(["/device:CPU:3", "/device:CPU:0"]):
            variable = keras.Variable([1.0, 2.0], name="variable")
            with strategy.extended.colocate_vars_with(first.value):
                beside = keras.Variable(tf.ones([2]), name="beside")
    for one, places in ((first, (1, 2)), (variable, (3, 0)), (beside, (3, 0))):
        copies = strategy.experimental_local_results(one.value)
        assert [copy.device[-5:] for copy in copies] == [f"CPU:{place}" for place in places]
        assert copies[1].numpy()[0] == 1.0


def test_a_part_stands_for_the_whole_variable():
    import keras
    import numpy as np

    compat.install()
    with keras.name_scope("outer"):
        whole = keras.Variable(np.ones((4, 2), "float32"), name="kernel")
    part = compat.PartVariable((2, 2), whole)
    assert (part.path, tuple(part.shape), part.value.shape[0]) == ("outer/kernel", (2, 2), None)
    assert part.value.numpy().size == 0
    optimizer = keras.optimizers.Adam(weight_decay=0.1, clipnorm=1.0)
    optimizer.exclude_from_weight_decay([whole])
    with compat.recording_slots() as slots:
        optimizer.build([part])
    assert [slot.of is part for slot in slots] == [True, True]
    assert [slot.variable for slot in slots] == optimizer.variables[2:]
    assert not optimizer._use_weight_decay(part)
    part.assign(np.ones((2, 2), "float32"))
    seen = []

    def clip(clipped, gradients):
        seen.append((clipped, len(gradients)))
        return gradients

    with compat.clipping_by(clip), compat.updating_own_copy(0):
        optimizer.apply([keras.ops.ones((2, 2))], [part])
    assert seen == [(optimizer, 1)]
    assert part.value.numpy().max() < 1
    part.clear(0)
    assert part.value.numpy().size == 0


def test_rules_by_name_see_the_names_of_tensorflow():
    """Keras gives `tf.Variable`s to updates. A part goes by the name of the whole one's."""
    import keras
    import numpy as np

    names = []

    class Notes(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            names.append(variable.name)

    compat.install()
    with keras.name_scope("outer"):
        whole = keras.Variable(np.ones((4, 2), "float32"), name="kernel")
    part = compat.PartVariable((2, 2), whole)
    part.assign(np.ones((2, 2), "float32"))
    for variable, scope in (
        (whole, contextlib.nullcontext()),
        (whole, compat.updating_own_copy(0)),
        (part, compat.updating_own_copy(0)),
    ):
        optimizer = Notes(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["outer"])
        optimizer.build([variable])
        with scope:
            optimizer.apply([keras.ops.ones(variable.shape)], [variable])
        assert variable.value.numpy().min() == 1.0
    assert names == ["outer/kernel:0"] * 3
    assert (whole.name, part.name) == ("kernel", "kernel")


def test_results_of_softmax_and_sigmoid_know_their_logits():
    import keras
    import tensorflow as tf

    from tfdist.compat import sharded_weights

    @tf.function
    def trace(x):
        found = [keras.activations.softmax(x), keras.activations.sigmoid(x)]
        assert all(getattr(one, sharded_weights._LOGITS) is x for one in found)
        assert [tf.nn.softmax(x).op.type, tf.sigmoid(x).op.type] == [*sharded_weights._WITH_LOGITS]
        return x

    trace.get_concrete_function(tf.TensorSpec([2, 3]))
