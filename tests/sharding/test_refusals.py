"""What sharded training cannot do, and says before it begins."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.strategies.elastic_refusals import check_options

_X, _Y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")


def _strategy(**options):
    return tfdist.MirroredStrategy(DEVICES[:2], sharding="optimizer", **options)


def _in_parts():
    return tfdist.MirroredStrategy(DEVICES[:2], sharding="parameters")


def _compiled(strategy, make):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(make(), "mse")
    return model


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"sharding": "parameter"}, "sharding='parameter'"),
        ({"sharding": True}, "sharding=True"),
        ({"sharding": "optimizer", "compression": "topk"}, "sharding='optimizer', compression="),
        ({"sharding": "gradients", "local": tfdist.LocalSGD(2)}, "sharding='gradients', local="),
        ({"sharding": "gradients", "exchange": "hierarchical"}, "exchange='hierarchical'"),
        ({"sharding": "parameters", "balance": True}, "sharding='parameters', balance=True"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        tfdist.MirroredStrategy(DEVICES[:2], **options)


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_elastic_jobs_are_refused(sharding):
    with pytest.raises(ValueError, match=f"Received: sharding='{sharding}' in an elastic job"):
        check_options(tfdist.Options(sharding=sharding))


class _ByGlobalNorm(keras.optimizers.SGD):
    """Divides all gradients by the norm of them all."""

    def apply(self, grads, trainable_variables=None):
        norm = tf.linalg.global_norm(grads)
        super().apply([gradient / norm for gradient in grads], trainable_variables)


class _SubclassOfLamb(keras.optimizers.Lamb):
    pass


def _several():
    return keras.optimizers.MultiOptimizer(
        lambda variable: (
            keras.optimizers.Lamb() if "kernel" in variable.path else keras.optimizers.SGD()
        )
    )


@pytest.mark.parametrize(
    ("make", "reason", "strategy"),
    [
        (keras.optimizers.Lamb, "Lamb, whose update of a variable differs", _in_parts),
        (_several, "Lamb, whose update of a variable differs", _strategy),
        (_SubclassOfLamb, "no subclasses of them.*_SubclassOfLamb, whose update", _strategy),
        (_ByGlobalNorm, "_ByGlobalNorm, whose update of a variable differs", _strategy),
        (keras.optimizers.ScheduleFreeAdamW, "state begins with the values", _in_parts),
        (lambda: keras.optimizers.Lamb(use_ema=True), "Lamb with use_ema=True", _strategy),
    ],
)
def test_optimizers_whose_update_would_be_wrong_are_refused(make, reason, strategy):
    model = _compiled(strategy(), make)
    before = model.get_weights()
    with pytest.raises(ValueError, match=reason):
        model.fit(_X, _Y, verbose=0)
    for weight, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, now)


class _OwnLayout(keras.optimizers.SGD):
    def save_own_variables(self, store):
        store["all"] = np.zeros(3)


def test_an_optimizer_with_a_layout_of_its_own_is_refused():
    model = _compiled(_strategy(), lambda: _OwnLayout())
    with pytest.raises(ValueError, match="_OwnLayout, which has a `save_own_variables`"):
        model.fit(_X, _Y, verbose=0)


class _Unknown(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        for variable in variables:
            self.add_variable(variable.shape, name="own")


def test_state_of_which_nobody_knows_the_variable_is_refused():
    with pytest.raises(ValueError, match="_Unknown, which has made .*own"):
        _compiled(_strategy(), _Unknown).fit(_X, _Y, verbose=0)


def test_state_of_several_whole_variables_is_refused(monkeypatch):
    build, update_step = keras.optimizers.Lamb.build, keras.optimizers.Lamb.update_step

    def with_one_more(self, variables):
        build(self, variables)
        self.more = self.add_variable((), name="more")

    def counting(self, gradient, variable, rate):
        self.assign_add(self.more, 1.0)
        update_step(self, gradient, variable, rate)

    monkeypatch.setattr(keras.optimizers.Lamb, "build", with_one_more)
    monkeypatch.setattr(keras.optimizers.Lamb, "update_step", counting)
    with pytest.raises(ValueError, match="must belong to one variable each.*Lamb with .*more"):
        _compiled(_strategy(), keras.optimizers.Lamb).fit(_X, _Y, verbose=0)


def test_the_state_cannot_be_set_by_hand():
    model = _compiled(_strategy(), keras.optimizers.Adam)
    model.fit(_X, _Y, verbose=0)
    with pytest.raises(ValueError, match="Received: set_weights of adam with 6 arrays"):
        model.optimizer.set_weights([v.numpy() for v in model.optimizer.variables])


@pytest.mark.parametrize("strategy", [_strategy, _in_parts])
def test_state_trees_are_refused_where_the_state_is_in_parts(strategy):
    model = _compiled(strategy(), keras.optimizers.Adam)
    tree = model.get_state_tree()
    model.set_state_tree(tree)  # nothing is in parts yet
    model.fit(_X, _Y, verbose=0)
    with pytest.raises(ValueError, match="Received: get_state_tree of .*whose .*adam is sharded"):
        model.get_state_tree()
    with pytest.raises(ValueError, match="Received: set_state_tree of .*whose .*adam is sharded"):
        model.set_state_tree(tree)


def test_state_trees_without_a_state_have_whole_weights():
    model = _compiled(_in_parts(), keras.optimizers.SGD)
    model.fit(_X, _Y, verbose=0)
    expected, tree = model.get_weights(), model.get_state_tree(value_format="numpy_array")
    model.fit(_X, _Y, verbose=0)
    model.set_state_tree(tree)
    for weight, now in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, now)


def _wrapped(optimizer):
    return keras.optimizers.LossScaleOptimizer(optimizer)


def _adam_and_sgd():
    matrices, others = keras.optimizers.Adam(), keras.optimizers.SGD(momentum=0.9)
    return keras.optimizers.MultiOptimizer(
        lambda variable: matrices if len(variable.shape) == 2 else others
    )


@pytest.mark.parametrize(
    "make",
    [
        keras.optimizers.Adam,
        keras.optimizers.Lamb,
        _adam_and_sgd,
        lambda: _wrapped(keras.optimizers.Adam()),
        lambda: _wrapped(_adam_and_sgd()),
    ],
)
def test_the_optimizer_inside_hands_out_no_parts(make):
    strategy = _strategy()
    model, alone = _compiled(strategy, make), make()
    model.fit(_X, _Y, verbose=0)
    alone.build([keras.Variable(weight) for weight in model.get_weights()])
    for ours, plain in zip(_inside(strategy.unwrap(model)), _inside(alone), strict=True):
        found, expected = {}, {}
        ours.save_own_variables(found)
        plain.save_own_variables(expected)
        assert {key: np.shape(found[key]) for key in found} == {
            key: np.shape(expected[key]) for key in expected
        }
        with pytest.raises(ValueError, match="Received: set_weights of"):
            ours.set_weights([variable.numpy() for variable in ours.variables])


def _inside(optimizer):
    """An optimizer and those inside of it."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [optimizer, inner, *getattr(inner, "optimizers", ())]


def test_averages_cannot_be_swapped_with_weights():
    model = _compiled(_strategy(), lambda: keras.optimizers.Adam(use_ema=True))
    with pytest.raises(ValueError, match="SwapEMAWeights with sharding='optimizer'"):
        model.fit(_X, _Y, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])


def test_an_optimizer_with_state_is_refused():
    strategy = _strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        with pytest.raises(ValueError, match="Received: adam, which is built"):
            model.compile(optimizer, "mse")


def test_a_checkpoint_of_tensorflow_is_refused(tmp_path):
    model = _compiled(_strategy(), keras.optimizers.Adam)
    model.fit(_X, _Y, verbose=0)
    for checkpoint in (tf.train.Checkpoint(model), tf.train.Checkpoint(model.optimizer)):
        with pytest.raises(ValueError, match="a checkpoint with a sharded optimizer"):
            checkpoint.save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model.layers[-1]).save(str(tmp_path / "layer"))


@pytest.mark.parametrize("name", ["model.h5", "model.weights.h5", "model.hdf5"])
def test_whole_models_in_hdf5_are_refused(name, tmp_path):
    model = _compiled(_strategy(), keras.optimizers.Adam)
    model.fit(_X, _Y, verbose=0)
    with pytest.raises(ValueError, match="Save the model as .keras.*Received: .*adam in such"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    model.save(tmp_path / "without.h5", include_optimizer=False)
    model.save_weights(tmp_path / "model.weights.h5")


def test_whole_models_in_hdf5_of_an_optimizer_without_a_state(tmp_path):
    model = _compiled(_strategy(), keras.optimizers.SGD)
    model.fit(_X, _Y, verbose=0)
    model.save(tmp_path / "model.h5")
    loaded = keras.saving.load_model(tmp_path / "model.h5", compile=False)
    for ours, saved in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, saved)


def test_callbacks_that_write_whole_models_in_hdf5_are_refused(tmp_path):
    model = _compiled(_strategy(), keras.optimizers.SGD)
    weights = keras.callbacks.ModelCheckpoint(tmp_path / "a.weights.h5", save_weights_only=True)
    model.fit(_X, _Y, verbose=0, callbacks=[weights])
    with pytest.raises(ValueError, match="Received: a ModelCheckpoint of .*model.h5"):
        checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.h5"))
        model.fit(_X, _Y, verbose=0, callbacks=[checkpoint])
    assert int(model.optimizer.iterations.numpy()) == 1


def test_sparse_gradients_of_a_table_with_too_few_rows_are_refused():
    with _strategy().scope():
        model = keras.Sequential([keras.layers.Embedding(3, 40_000), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(ValueError, match="sparse gradients of .*embeddings"):
        model.fit(np.zeros((4, 2), "int32"), np.zeros((4, 2, 1)), verbose=0)


def test_parameter_servers_refuse_it():
    with pytest.raises(ValueError, match="Received: sharding='optimizer'"):
        tfdist.Strategy("parameter_server", sharding="optimizer")


def test_weights_in_parts_cannot_be_compiled():
    with _in_parts().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        with pytest.raises(ValueError, match="jit_compile=True, sharding='parameters'"):
            model.compile("sgd", "mse", jit_compile=True)


def test_weights_are_not_made_in_a_step():
    strategy = _in_parts()
    with strategy.scope():
        dense = keras.layers.Dense(3)
    with pytest.raises(ValueError, match="the weight dense.*/kernel, which a step makes"):
        strategy.run(tf.function(lambda: dense(_X)))


def test_gradients_are_not_taken_outside_of_replicas():
    model = _compiled(_in_parts(), keras.optimizers.SGD)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(_X))
    with pytest.raises(ValueError, match="Received: a gradient outside of replicas"):
        tape.gradient(loss, model.trainable_variables)


def test_gradients_by_inputs_are_taken_outside_of_replicas():
    model = _compiled(_in_parts(), keras.optimizers.SGD)
    x = tf.constant(_X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x))
    expected = np.broadcast_to(model.layers[-1].kernel.numpy().sum(axis=1), _X.shape)
    np.testing.assert_allclose(tape.gradient(loss, x), expected, rtol=1e-6)


def test_weights_in_parts_are_not_exported(tmp_path):
    model = _compiled(_in_parts(), keras.optimizers.SGD)
    with pytest.raises(ValueError, match="Received: an export with .*dense.*/kernel"):
        model.export(tmp_path / "exported", verbose=False)
    with pytest.raises(ValueError, match="Received: a checkpoint with .*dense.*/kernel"):
        tf.train.Checkpoint(model.layers[-1]).save(str(tmp_path / "layer"))


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_a_plain_optimizer_does_not_train_in_parts(sharding):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding)
    with strategy.scope():
        dense = keras.layers.Dense(3)
        dense.build((None, 4))
        optimizer = keras.optimizers.SGD()
        optimizer.build(dense.trainable_variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(_Y, dense(_X))
        variables = dense.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    with pytest.raises(ValueError, match="This optimizer is not wrapped"):
        strategy.run(step)


class WithFunction(keras.layers.Layer):
    """Calls a function of TensorFlow of its own."""

    def build(self, shape):
        self.kernel = self.add_weight((4, 3), name="kernel")

    @tf.function
    def call(self, inputs):
        return inputs @ self.kernel


def test_weights_are_not_read_in_inner_functions():
    with _in_parts().scope():
        model = keras.Sequential([keras.Input((4,)), WithFunction()])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Received: a read of .*kernel in such a function"):
        model.fit(_X, _Y, verbose=0)


class Changes(keras.Model):
    """Changes the gradients in its step."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.dense = keras.layers.Dense(3, kernel_regularizer="l2")
        self.dense.build((None, 4))
        self.built = True

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(self.change(gradients), self.trainable_variables)
        return {"loss": loss}


def _fit_changed(change, eagerly=False):
    with _in_parts().scope():
        model = Changes(change)
        model.compile("sgd", "mse", run_eagerly=eagerly)
    return model.fit(_X, _Y, verbose=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda gradients: [tf.clip_by_norm(gradient, 1.0) for gradient in gradients],
        lambda gradients: tf.clip_by_global_norm(gradients, 1.0)[0],
        lambda gradients: [gradient - tf.reduce_mean(gradient) for gradient in gradients],
    ],
)
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_step_does_not_change_its_part_of_a_gradient(change, eagerly):
    with pytest.raises(ValueError, match="it cannot clip or normalize a gradient itself"):
        _fit_changed(change, eagerly)


def test_an_eager_step_may_apply_gradients():
    _fit_changed(lambda gradients: gradients, eagerly=True)


def test_a_step_may_scale_gradients():
    _fit_changed(lambda gradients: [gradient * 0.5 / 3.0 for gradient in gradients])


class ScaledInPart(keras.Model):
    """Scales one of its two losses."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.build((None, 4))

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            other = self.compute_loss(x, y, self(2.0 * x, training=True))
        first = tape.gradient(loss, self.trainable_variables)
        with tape:
            scaled = self.optimizer.scale_loss(other)
        tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(first, self.trainable_variables)
        return {"loss": loss}


def test_losses_must_be_scaled_before_gradients_are_summed():
    with _in_parts().scope():
        model = ScaledInPart()
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="call it for each loss before any gradient is taken"):
        model.fit(_X, _Y, verbose=0)
