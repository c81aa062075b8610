"""Ways to write the loss of a training loop; on one device the same code is the reference.

Each class is a loop's step: it returns what the strategy reduces, by the name of the reduction.
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

ROWS, BATCH = 33, 8
_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(ROWS, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * 2.0).astype("float32")


class Style:
    """A step of TensorFlow's tutorial, with a plain optimizer and a plain Keras loss.

    Attributes:
        reduction: how the loop reduces the losses, "SUM" or "MEAN"; None where it does not.
    """

    reduction = "SUM"

    def __init__(self):
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.loss_object = keras.losses.MeanSquaredError()
        self.train_loss = keras.metrics.Mean()
        self.test_loss = keras.metrics.Mean()
        self.prepare()

    def make_model(self):
        keras.utils.set_random_seed(2)
        regularizer = keras.regularizers.L2(0.05)
        hidden = keras.layers.Dense(8, activation="relu", kernel_regularizer=regularizer)
        return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])

    def make_optimizer(self):
        return keras.optimizers.SGD(0.05, momentum=0.9)

    def prepare(self):
        pass

    def loss(self, x, y):
        return self.loss_object(y, self.model(x, training=True))

    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def test(self, x, y):
        self.test_loss.update_state(self.loss_object(y, self.model(x)))

    @property
    def weights(self):
        return self.model.get_weights()


class Wrapped(Style):
    def make_optimizer(self):
        return tfdist.DistributedOptimizer(keras.optimizers.Adam(0.02, global_clipnorm=0.5))


class KerasLoss(Style):
    """Plain Keras losses, `model.losses` as they are, a metric of the loss."""

    def loss(self, x, y):
        loss = super().loss(x, y)
        return loss + tf.add_n(self.model.losses)

    def train(self, x, y):
        loss = super().train(x, y)
        self.train_loss.update_state(loss)
        return loss


class KerasLossWrapped(KerasLoss, Wrapped):
    pass


class Tutorial(Style):
    """TensorFlow's tutorial, unchanged."""

    def prepare(self):
        self.vector = keras.losses.MeanSquaredError(reduction="none")

    def loss(self, x, y):
        losses = self.vector(y, self.model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        return loss + tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))

    def test(self, x, y):
        self.test_loss.update_state(self.vector(y, self.model(x)))


class TutorialWithoutSize(Tutorial):
    def loss(self, x, y):
        losses = self.vector(y, self.model(x, training=True))
        loss = tf.nn.compute_average_loss(losses)
        return loss + tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))

    def train(self, x, y):
        loss = super().train(x, y)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self.train_loss.update_state(loss * replicas)  # as in the guide to TPUs
        return loss


class TutorialWrapped(Tutorial, Wrapped):
    pass


class OlderTutorial(Tutorial):
    """Losses that are divided by hand."""

    def loss(self, x, y):
        losses = self.vector(y, self.model(x, training=True))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        loss = tf.reduce_sum(losses) * (1.0 / BATCH)
        return loss + tf.add_n(self.model.losses) / replicas


class Horovod(Style):
    """A plain mean; what the loop reports is averaged by itself."""

    reduction = None

    def loss(self, x, y):
        error = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        return error + tf.add_n(self.model.losses)

    def train(self, x, y):
        loss = super().train(x, y)
        self.train_loss.update_state(loss)
        return loss


class HorovodWrapped(Horovod, Wrapped):
    def loss(self, x, y):
        losses = keras.losses.mean_squared_error(y, self.model(x, training=True))
        return tf.reduce_mean(losses) + tf.add_n(self.model.losses)


class InnerFunction(Horovod):
    def prepare(self):
        @tf.function
        def error(y, p):
            return 2.0 * tf.reduce_mean(tf.square(y - p))

        self.error = error

    def loss(self, x, y):
        return self.error(y, self.model(x, training=True))


class Scaled(Wrapped):
    def loss(self, x, y):
        error = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        return tfdist.scale_loss(error + tf.add_n(self.model.losses))


class KerasLossAndScaledRegularization(Style):
    def loss(self, x, y):
        reg = tf.nn.scale_regularization_loss(tf.add_n(self.model.losses))
        return super().loss(x, y) + reg


class AverageAndPlainRegularization(Tutorial):
    def loss(self, x, y):
        losses = self.vector(y, self.model(x, training=True))
        reported = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        return reported + 0.1 * super().loss(x, y) + tf.add_n(self.model.losses)

    reduction = None


class Sum(Style):
    def loss(self, x, y):
        loss = keras.losses.MeanSquaredError(reduction="sum")(y, self.model(x, training=True))
        return loss * (1.0 / BATCH)


class Penalty(Style):
    """A gradient of a gradient; `tf.reduce_mean` of its norm."""

    reduction = None

    def loss(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            p = self.model(x, training=True)
        norms = tf.reduce_sum(tf.square(tape.gradient(p, x)), axis=1)
        return self.loss_object(y, p) + 0.1 * tf.reduce_mean((norms - 1.0) ** 2)


class Nets(Style):
    """Two tapes and two optimizers, as for a GAN; losses of logits, one of them halved."""

    def prepare(self):
        keras.utils.set_random_seed(3)
        self.other = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.other_optimizer = tfdist.DistributedOptimizer(keras.optimizers.Adam(0.01))
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def train(self, x, y):
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            made = self.model(x, training=True)
            real, fake = self.other(y, training=True), self.other(made, training=True)
            g_loss = self.entropy(tf.ones_like(fake), fake)
            d_loss = self.entropy(tf.ones_like(real), real)
            d_loss = (d_loss + self.entropy(tf.zeros_like(fake), fake)) * 0.5
        variables, others = self.model.trainable_variables, self.other.trainable_variables
        self.optimizer.apply_gradients(zip(g_tape.gradient(g_loss, variables), variables))
        self.other_optimizer.apply_gradients(zip(d_tape.gradient(d_loss, others), others))
        return {"g": g_loss, "d": d_loss}

    @property
    def weights(self):
        return self.model.get_weights() + self.other.get_weights()


class MetaLearning(Style):
    """A step inside a step, whose gradient is the gradient of what it leads to."""

    reduction = None

    def make_model(self):
        keras.utils.set_random_seed(2)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def loss(self, x, y):
        kernel, bias = self.model.trainable_variables
        with tf.GradientTape() as tape:
            inner = self.loss_object(y, tf.matmul(x, kernel) + bias)
        step, _ = tape.gradient(inner, [kernel, bias])
        # The mean over the batch of a step that each replica could take by itself.
        return tf.reduce_mean(tf.matmul(x, step * 0.0 + kernel) ** 2)


class SynchronizedNormalization(Style):
    def make_model(self):
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(synchronized=True)]
        return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])


class SynchronizedNormalizationByHand(SynchronizedNormalization):
    reduction = None

    def loss(self, x, y):
        return tf.reduce_mean(tf.square(y - self.model(x, training=True)))


class MixedPrecision(Style):
    reduction = None

    def make_model(self):
        keras.utils.set_random_seed(2)
        hidden = keras.layers.Dense(8, activation="relu")
        return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])

    def make_optimizer(self):
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0)
        return tfdist.DistributedOptimizer(inner)

    def loss(self, x, y):
        loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        return self.optimizer.scale_loss(loss)


class Accumulated(KerasLoss):
    def make_optimizer(self):
        inner = keras.optimizers.Adam(0.02, global_clipnorm=0.5)
        return tfdist.DistributedOptimizer(inner, accumulation_steps=2)


class BuiltLate(Style):
    """The model and the plain optimizer are built by the first step, inside the function."""

    def make_model(self):
        hidden = keras.layers.Dense(8, activation="relu", kernel_initializer="ones")
        normalization = keras.layers.BatchNormalization(synchronized=True)
        last = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([hidden, normalization, keras.layers.Dropout(0.0), last])

    def make_optimizer(self):
        return keras.optimizers.Adam(0.02)


class BuiltLateWrapped(BuiltLate):
    def make_optimizer(self):
        return tfdist.DistributedOptimizer(super().make_optimizer())


STYLES = [
    Style, Wrapped, KerasLoss, KerasLossWrapped, Tutorial, TutorialWithoutSize, TutorialWrapped,
    OlderTutorial, Horovod, HorovodWrapped, InnerFunction, Scaled,
    KerasLossAndScaledRegularization, AverageAndPlainRegularization, Sum, Penalty, Nets,
    MetaLearning, SynchronizedNormalization, SynchronizedNormalizationByHand, MixedPrecision,
    Accumulated, BuiltLate, BuiltLateWrapped,
]  # fmt: skip


def run(style, strategy, epochs=1, function=True):
    """Trains and tests; returns the weights and what was reported."""
    with strategy.scope():
        loop = style()
        if loop.model.built:
            loop.optimizer.build(loop.model.trainable_variables)

    def train(x, y):
        losses = strategy.run(loop.train, args=(x, y))
        if loop.reduction is None:
            return ()
        if not isinstance(losses, dict):
            losses = {"loss": losses}
        return [strategy.reduce(loop.reduction, loss, axis=None) for loss in losses.values()]

    def test(x, y):
        strategy.run(loop.test, args=(x, y))

    if function:
        train = tf.function(train, autograph=False)
        test = tf.function(test, autograph=False)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    data = strategy.experimental_distribute_dataset(data)
    reported = []
    for _ in range(epochs):
        for x, y in data:
            reported.extend(float(loss) for loss in train(x, y))
        for x, y in data:
            test(x, y)
    metrics = [float(loop.train_loss.result()), float(loop.test_loss.result())]
    return {"weights": loop.weights, "losses": reported, "metrics": metrics}


def differences(ours, theirs):
    """The largest differences that are no rounding errors, by what differs."""
    found = {}
    weights = [
        np.max(np.abs(a - np.asarray(b)))
        for a, b in zip(ours["weights"], theirs["weights"], strict=True)
    ]
    found["weights"] = max(weights)
    for name in ("losses", "metrics"):
        numbers = [
            abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours[name], theirs[name], strict=True)
        ]
        found[name] = max(numbers, default=0.0)
    return {name: float(value) for name, value in found.items() if not value <= 2e-6}
