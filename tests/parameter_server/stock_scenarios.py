"""Loops of TensorFlow's coordinator, as in its tutorial on parameter servers."""

import keras
import numpy as np
import tensorflow as tf

import tfdist

STEPS, MANY, ROWS, BATCH = 4, 150, 7, 8
_RANDOM = np.random.default_rng(3)
IDS = _RANDOM.integers(0, ROWS, (BATCH, 3))
Y = _RANDOM.normal(size=(BATCH, 1)).astype("float32")
PARTITIONER = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)

_optimizers = keras.optimizers
OPTIMIZERS = {
    "momentum": lambda: _optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: _optimizers.Adam(0.05, amsgrad=True),
    "decayed": lambda: _optimizers.AdamW(0.05, weight_decay=0.1),
    "rmsprop": lambda: _optimizers.RMSprop(0.05, centered=True, momentum=0.5),
    "clipnorm": lambda: _optimizers.SGD(0.3, clipnorm=0.05),
    "global_clipnorm": lambda: _optimizers.SGD(0.3, global_clipnorm=0.05),
    "averaged": lambda: _optimizers.SGD(0.3, use_ema=True, ema_momentum=0.5),
}


class Loop:
    """A table, a constrained kernel and a bias; the step of the tutorial."""

    def __init__(self, optimizer):
        keras.utils.set_random_seed(5)
        ids = keras.Input((3,), dtype="int32")
        table = keras.layers.Embedding(ROWS, 4, embeddings_regularizer=keras.regularizers.L2(0.01))
        mean = keras.ops.mean(table(ids), axis=1)
        norm = keras.constraints.MaxNorm(0.8)
        self.model = keras.Model(ids, keras.layers.Dense(2, kernel_constraint=norm)(mean))
        self.optimizer = optimizer
        self.loss = keras.metrics.Mean()

    def step(self, ids, y):
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(y - self.model(ids, training=True)), axis=-1)
            loss = tf.nn.compute_average_loss(losses)
            total = loss + tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, variables), variables))
        self.loss.update_state(losses)
        return loss

    def state(self):
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        return {
            "weights": [np.asarray(weight).tolist() for weight in self.model.get_weights()],
            "loss": float(self.loss.result()),
            "iterations": int(self.optimizer.iterations),
        }


def _iterator(strategy, coordinator, batch):
    @tf.function
    def per_worker():
        return strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.from_tensors(batch).repeat()
        )

    return iter(coordinator.create_per_worker_dataset(per_worker))


def _summed(strategy, loop):
    @tf.function
    def step(iterator):
        losses = strategy.run(loop.step, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    return step


def one_device(optimizer):
    """What the loop does on one device."""
    loop = Loop(optimizer)
    step = tf.function(loop.step)
    for _ in range(STEPS):
        step(tf.constant(IDS), tf.constant(Y))
    return loop.state()


def stock_partitioned(resolver, folder):
    """Trains partitioned variables, one step after the other, with every kind of optimizer."""
    found, refused = {}, {}
    strategy = tfdist.ParameterServerStrategy(resolver, variable_partitioner=PARTITIONER)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = _iterator(strategy, coordinator, (IDS, Y))
    others = {"adafactor": _optimizers.Adafactor, "lamb": _optimizers.Lamb}
    for name, make in {**OPTIMIZERS, **others}.items():
        with strategy.scope():
            loop = Loop(make())
        step = _summed(strategy, loop)
        try:
            for _ in range(STEPS):
                coordinator.schedule(step, args=(iterator,))
                coordinator.join()
            found[name] = {**loop.state(), "parts": len(loop.model.weights[0].value.variables)}
        except ValueError as error:
            refused[name] = str(error)
    return {"found": found, "refused": refused}


class _Linear(Loop):
    """The gradient is the same in each step, so the weights tell how many were applied."""

    def __init__(self):
        keras.utils.set_random_seed(5)
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        self.optimizer = _optimizers.SGD(2.0**-7)
        self.loss = keras.metrics.Mean()
        self.truth = keras.metrics.TruePositives()
        self.matrix = keras.metrics.IoU(num_classes=2, target_class_ids=[1])

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.model(x))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.loss.update_state(y)
        self.truth.update_state(y, y)
        self.matrix.update_state(y, y)
        return loss


def stock_many(resolver, folder):
    """Schedules many steps at once, so that workers update the same variables at the same time."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        loop = _Linear()
        for weight in loop.model.weights:
            weight.assign(tf.zeros(weight.shape))
    batch = np.ones((1, 2), "float32"), np.ones((1,), "float32")
    iterator = _iterator(strategy, coordinator, batch)

    @tf.function
    def step(iterator):
        strategy.run(loop.step, args=next(iterator))
        for _ in tf.range(2):
            strategy.run(loop.loss.update_state, args=(2.0,))

    for _ in range(MANY):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    return {
        "weights": [np.unique(weight).tolist() for weight in loop.model.get_weights()],
        "iterations": int(loop.optimizer.iterations),
        "count": float(loop.loss.count),
        "total": float(loop.loss.total),
        "truth": float(loop.truth.result()),
        "matrix": np.asarray(loop.matrix.total_cm).tolist(),
    }
