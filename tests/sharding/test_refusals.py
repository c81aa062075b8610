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
    ],
)
def test_options_that_do_not_go_together_are_refused(options, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        tfdist.MirroredStrategy(DEVICES[:2], **options)


@pytest.mark.parametrize("sharding", ["optimizer", "gradients"])
def test_elastic_jobs_are_refused(sharding):
    with pytest.raises(ValueError, match=f"Received: sharding='{sharding}' in an elastic job"):
        check_options(tfdist.Options(sharding=sharding))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (keras.optimizers.Lamb, "Lamb, whose update of a variable differs"),
        (
            lambda: keras.optimizers.MultiOptimizer(
                lambda variable: (
                    keras.optimizers.Lamb() if "kernel" in variable.path else keras.optimizers.SGD()
                )
            ),
            "Lamb, whose update of a variable differs",
        ),
        (keras.optimizers.ScheduleFreeAdamW, "state begins with the values of the weights"),
    ],
)
def test_optimizers_that_need_whole_variables_are_refused(make, reason):
    model = _compiled(_strategy(), make)
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


def test_the_state_cannot_be_set_by_hand():
    model = _compiled(_strategy(), keras.optimizers.Adam)
    model.fit(_X, _Y, verbose=0)
    with pytest.raises(ValueError, match="Received: set_weights of adam with 6 arrays"):
        model.optimizer.set_weights([v.numpy() for v in model.optimizer.variables])


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


def test_sparse_gradients_of_a_table_with_too_few_rows_are_refused():
    with _strategy().scope():
        model = keras.Sequential([keras.layers.Embedding(3, 40_000), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(ValueError, match="sparse gradients of .*embeddings"):
        model.fit(np.zeros((4, 2), "int32"), np.zeros((4, 2, 1)), verbose=0)


def test_parameter_servers_refuse_it():
    with pytest.raises(ValueError, match="Received: sharding='optimizer'"):
        tfdist.Strategy("parameter_server", sharding="optimizer")
