"""What cannot be done with local steps raises before training starts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand
from tests.log_messages import log_messages
from tfdist.options import Options
from tfdist.processes.agreement import check_equal
from tfdist.strategies.horovod.elastic import ElasticHorovodStrategy
from tfdist.strategies.multi_worker.elastic import ElasticMultiWorkerStrategy
from tfdist.strategies.parameter_server import checks

LOCAL = tfdist.LocalSGD(steps=4)
_ScheduleFree = getattr(keras.optimizers, "ScheduleFreeAdamW", None)


def strategy(**options):
    return tfdist.MirroredStrategy(["CPU:0", "CPU:1"], **{"local": LOCAL, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": True}, "Leave one of them out"),
        ({"compression": "dgc"}, "momentum of gradients in itself"),
        ({"local": tfdist.DiLoCo(4), "compression": "topk"}, "training diverges"),
        ({"local": tfdist.DiLoCo(4), "compression": "randomk"}, "training diverges"),
        ({"local": tfdist.DiLoCo(4), "compression": {"*": "threshold"}}, "training diverges"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**{"local": LOCAL, **options})


def test_sparsifiers_without_outer_momentum_are_allowed():
    Options(local=LOCAL, compression="topk")
    Options(local=tfdist.DiLoCo(4, outer_momentum=0.0), compression="topk")


def test_low_rank_with_outer_momentum_is_warned_of_once():
    local = tfdist.DiLoCo(4321)  # of which nobody else has been told
    with log_messages() as messages:
        for _ in range(2):
            Options(local=local, compression={"*kernel": "powersgd", "*": "fp16"})
        Options(local=local, compression="qsgd")
        Options(local=tfdist.DiLoCo(4321, outer_momentum=0.0), compression="powersgd")
        Options(local=tfdist.LocalSGD(4321), compression="powersgd")
    (message,) = [message for message in messages if "PowerSGD" in message]
    assert "PowerSGD trained badly where it was measured" in message
    assert "compression=PowerSGD(" in message and "local=DiLoCo(steps=4321" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tfdist.LocalSGD("2 s"), "how many seconds it is to last"),
        (lambda: tfdist.DiLoCo("0s"), "how many seconds it is to last"),
        (lambda: tfdist.DiLoCo("2s", fragments=2), "leave out `fragments` and `overlap`"),
        (lambda: tfdist.DiLoCo("2s", overlap=1), "leave out `fragments` and `overlap`"),
        (lambda: tfdist.DiLoCo("2s", mixing_factor=0.1), "Without `overlap`"),
        (lambda: tfdist.LocalSGD(0), "steps"),
        (lambda: tfdist.LocalSGD(2, after=-1), "after"),
        (lambda: tfdist.DiLoCo(2, outer_learning_rate=0.0), "outer_learning_rate"),
        (lambda: tfdist.DiLoCo(2, outer_momentum=1.0), "outer_momentum"),
    ],
)
def test_choices_that_are_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_replicas_that_train_apart_are_not_compiled():
    with strategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with pytest.raises(ValueError, match="that train apart .* jit_compile=True, local="):
            model.compile("sgd", "mse", jit_compile=True)


def test_something_else_than_a_choice():
    with pytest.raises(TypeError, match="LocalSGD"):
        Options(local=8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compression": "int8"}, "compression"),
        ({"accumulation_steps": 2}, "accumulation_steps"),
        ({"local": tfdist.LocalSGD(4, after=1)}, "after"),
        ({"local": tfdist.DiLoCo(4, fragments=2)}, "fragments"),
        ({"local": tfdist.DiLoCo(4, overlap=1)}, "overlap"),
        ({"local": tfdist.LocalSGD("2s")}, "rounds by time"),
    ],
)
@pytest.mark.parametrize("kind", [ElasticMultiWorkerStrategy, ElasticHorovodStrategy])
def test_what_elastic_jobs_cannot_do_in_rounds(kind, options, named):
    with pytest.raises(ValueError, match=f"without --min, or leave out: .*{named}.* Received: "):
        kind(**{"local": LOCAL, **options})


def test_parameter_servers():
    with pytest.raises(ValueError, match="fetch them for each step"):
        checks.check(Options(local=LOCAL), "static", None, 10.0, None, None)


def _compiled(layers, of=None, **options):
    of = of or strategy()
    with of.scope():
        model = keras.Sequential([keras.Input((by_hand.FEATURES,)), *layers()])
        model.compile("sgd", "mse", **options)
    return model


def _fit(model):
    model.fit(np.ones((8, by_hand.FEATURES)), np.ones((8, 1)), batch_size=4, verbose=0)


def test_synchronized_layers():
    normalization = keras.layers.BatchNormalization
    model = _compiled(lambda: [normalization(synchronized=True), keras.layers.Dense(1)])
    before = model.get_weights()
    with pytest.raises(ValueError, match="With `local` replicas cannot exchange"):
        _fit(model)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)


def test_train_on_batch():
    model = _compiled(lambda: [keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="in the middle of a round"):
        model.train_on_batch(np.ones((4, by_hand.FEATURES)), np.ones((4, 1)))
    assert int(model.optimizer.iterations.numpy()) == 0


@pytest.mark.skipif(_ScheduleFree is None, reason="this Keras has no ScheduleFreeAdamW")
@pytest.mark.parametrize(
    "around",
    [
        lambda optimizer: optimizer,
        keras.optimizers.LossScaleOptimizer,
        lambda optimizer: keras.optimizers.MultiOptimizer(lambda variable: optimizer),
    ],
)
def test_an_optimizer_whose_slots_are_weights(around):
    with strategy().scope():
        model = keras.Sequential([keras.Input((by_hand.FEATURES,)), keras.layers.Dense(1)])
        model.compile(around(_ScheduleFree(0.01)), "mse")
    before = model.get_weights()
    message = "never meet there.* optimizer=ScheduleFreeAdamW, local="
    for _ in range(2):  # `fit` may be called again
        with pytest.raises(ValueError, match=message):
            _fit(model)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.skipif(_ScheduleFree is None, reason="this Keras has no ScheduleFreeAdamW")
def test_such_an_optimizer_trains_where_all_updates_are_synchronous():
    with strategy(local=tfdist.LocalSGD(1)).scope():
        model = keras.Sequential([keras.Input((by_hand.FEATURES,)), keras.layers.Dense(1)])
        model.compile(_ScheduleFree(0.01), "mse")
    _fit(model)
    assert int(model.optimizer.iterations.numpy()) == 2


class _Joint(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), aggregation="mean")

    def call(self, x):
        return keras.ops.matmul(x, self.kernel)


def test_weights_that_replicas_set_together():
    with pytest.raises(ValueError, match="own copy of a weight"):
        _fit(_compiled(lambda: [_Joint()]))


def _step(of, loss_of, mark=tfdist.local_step):
    with of.scope():
        weight = keras.Variable([1.0])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(x * weight.value)
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])

    data = tf.data.Dataset.from_tensor_slices(np.ones(4, "float32")).batch(4)
    (x,) = of.experimental_distribute_dataset(data)
    tf.function(lambda x: of.run(mark(step), args=(x,)))(x)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda y: tf.nn.compute_average_loss(y, global_batch_size=4),
        lambda y: tf.reduce_sum(y) / 4,
        tf.reduce_sum,
    ],
)
def test_losses_that_are_parts_of_a_global_sum(loss_of):
    with pytest.raises(ValueError, match="a part of a sum over all replicas"):
        _step(strategy(), loss_of)


@pytest.mark.parametrize("built", [False, True])
def test_weights_that_a_step_sets_before_it_builds_their_optimizer(built):
    of = strategy()
    with of.scope():
        weight = keras.Variable([1.0], name="weight")
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        if built:
            optimizer.build([weight])

    def step(x):
        weight.assign(1.1 * weight)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x * weight.value)
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])

    data = tf.data.Dataset.from_tensor_slices(np.ones(4, "float32")).batch(4)
    (x,) = of.experimental_distribute_dataset(data)
    train_step = tf.function(lambda x: of.run(tfdist.local_step(step), args=(x,)))
    if built:
        train_step(x)
        optimizer.finish_round()
        np.testing.assert_allclose(weight.numpy(), [1.0])
        return
    with pytest.raises(ValueError, match=r"Call `optimizer.build\(variables\)` .* sets weight"):
        train_step(x)
    np.testing.assert_array_equal(weight.numpy(), [1.0])


def test_steps_that_are_not_marked():
    with pytest.raises(ValueError, match="tfdist.local_step"):
        _step(strategy(), tf.reduce_mean, mark=lambda step: step)


def test_after_in_a_loop_of_the_users_own():
    with pytest.raises(ValueError, match="`after` counts the updates of `fit`"):
        _step(strategy(local=tfdist.LocalSGD(4, after=2)), tf.reduce_mean)


def test_one_replica_trains_as_without():
    alone = tfdist.MirroredStrategy(["CPU:0"], local=LOCAL)
    assert alone.local is None
    _step(alone, tf.reduce_mean)


def test_ranks_that_differ_are_told_what_a_callback_must_not_do():
    with pytest.raises(RuntimeError, match="With `local` a callback must not set variables"):
        check_equal([1, 2])
