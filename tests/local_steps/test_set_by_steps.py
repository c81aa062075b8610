"""Steps that set the weights that they train, or only some of those that an optimizer has."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps.test_by_hand import check_equal_copies

X = np.random.default_rng(0).normal(size=(33, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
BATCH, RATES = 4, (0.05, 0.02)


def loss(model, x, y):
    return keras.losses.MeanSquaredError()(y, model(x, training=True))


def plain(model, x, y, apply):
    with tf.GradientTape() as tape:
        value = loss(model, x, y)
    apply(tape.gradient(value, model.trainable_variables))
    return value


def decays(model, x, y, apply):
    """Sets weights after the update."""
    value = plain(model, x, y, apply)
    for v in model.trainable_variables:
        v.assign(v * (1 - 0.2 * tf.reduce_mean(tf.abs(x))))
    return value


def perturbs(model, x, y, apply):
    """Sets weights before the update, and takes that back after it."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        value = loss(model, x, y)
    moves = [0.05 * tf.sign(g) for g in tape.gradient(value, variables)]
    for v, move in zip(variables, moves):
        v.assign_add(move)
    plain(model, x, y, apply)
    for v, move in zip(variables, moves):
        v.assign_sub(move)
    return value


def made():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, "tanh", name="first"), keras.layers.Dense(1, name="second")]
    return keras.Sequential([keras.Input((3,)), *layers])


def by_hand(act, rows, local, accumulation=1):
    """The weights of each replica after one epoch."""
    models, samples, used = [made(), made()], [0, 0], [0, 0]
    waiting, moments = [[], []], [np.zeros_like(w) for w in made().get_weights()]
    anchor, updates = models[0].get_weights(), 0
    rates = [RATES[0]] * 2 + [RATES[1]] * 2

    def meet():
        nonlocal anchor
        counts = used if sum(used) else samples
        both = zip(models[0].get_weights(), models[1].get_weights())
        mean = [(counts[0] * p + counts[1] * q) / sum(counts) for p, q in both]
        if isinstance(local, tfdist.DiLoCo):
            for i, (old, new) in enumerate(zip(anchor, mean)):
                moments[i] = local.outer_decay * moments[i] + old - new
                step = old - new + local.outer_decay * moments[i]
                mean[i] = old - local.outer_rate * step
        for model in models:
            model.set_weights(mean)
        anchor, used[:], samples[:] = mean, [0, 0], [0, 0]

    for number, start in enumerate(range(0, rows, BATCH), 1):
        for r, model in enumerate(models):
            part = slice(start + 2 * r, min(start + 2 * r + 2, rows))
            if part.start >= rows:
                continue

            def apply(gradients, r=r, model=model, size=part.stop - part.start, n=number):
                waiting[r].append((gradients, size))
                if n % accumulation == 0:
                    parts, sizes = zip(*waiting[r])
                    for v, rate, *own in zip(model.trainable_variables, rates, *parts):
                        v.assign_sub(rate * tf.add_n(own) / len(own))
                    used[r] += sum(sizes)
                    waiting[r].clear()

            act(model, X[part], Y[part], apply)
            samples[r] += part.stop - part.start
        updates += number % accumulation == 0
        if updates and updates % local.steps == 0 and number % accumulation == 0:
            meet()
    if any(samples):
        meet()
    return models[0].get_weights()


def trained(act, rows, local, eager=False, built=True, **options):
    """Two optimizers that are built for all weights, each applied to a layer."""
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local, **options)

    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            variables = self.trainable_variables

            def apply(gradients):
                self.optimizer.apply(gradients[:2], variables[:2])
                self.other.apply(gradients[2:], variables[2:])

            return {"loss": act(self, x, y, apply)}

    with strategy.scope():
        model = Model(made().layers)
        model.build((None, 3))
        optimizers = [keras.optimizers.SGD(rate) for rate in RATES]
        model.compile(optimizers[0], run_eagerly=eager)
        model.other = tfdist.DistributedOptimizer(optimizers[1])
        if built:
            model.other.build(model.trainable_variables)
    model.fit(X[:rows], Y[:rows], batch_size=BATCH, shuffle=False, verbose=0)
    check_equal_copies(model.trainable_variables)
    return model.get_weights()


LOCAL = [tfdist.LocalSGD(3), tfdist.DiLoCo(3)]


@pytest.mark.parametrize("local", LOCAL, ids=["mean", "outer"])
@pytest.mark.parametrize("act", [plain, decays, perturbs])
@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.full)])
def test_weights_that_a_step_sets_equal_the_same_by_hand(act, local, eager):
    """The last batch has one sample, so a replica has none."""
    for actual, expected in zip(trained(act, 33, local, eager), by_hand(act, 33, local)):
        assert np.abs(actual - expected).max() <= 1e-6


@pytest.mark.parametrize(
    ("act", "local"),
    [
        (decays, LOCAL[1]),
        (perturbs, LOCAL[0]),
        pytest.param(decays, LOCAL[0], marks=pytest.mark.full),
        pytest.param(perturbs, LOCAL[1], marks=pytest.mark.full),
    ],
)
def test_weights_set_while_gradients_wait_equal_the_same_by_hand(act, local):
    """The last two micro-batches wait for an update."""
    actual = trained(act, 32, local, accumulation_steps=3)
    for ours, expected in zip(actual, by_hand(act, 32, local, 3)):
        assert np.abs(ours - expected).max() <= 1e-6


@pytest.mark.parametrize("eager", [False, True])
def test_a_round_of_an_optimizer_that_a_step_builds_begins_with_the_step(eager):
    local = LOCAL[1]
    for actual, expected in zip(
        trained(perturbs, 33, local, eager, built=False), by_hand(perturbs, 33, local)
    ):
        assert np.abs(actual - expected).max() <= 1e-6


@pytest.mark.parametrize("overlap", [pytest.param(0, marks=pytest.mark.full), 1])
def test_fragments_of_which_an_optimizer_trains_a_part(overlap):
    """The second optimizer trains no weight of its first fragment."""
    local = tfdist.DiLoCo(4, fragments=2, overlap=overlap)
    before = made().get_weights()
    for old, new in zip(before, trained(plain, 33, local), strict=True):
        assert np.isfinite(new).all() and (old != new).any()
