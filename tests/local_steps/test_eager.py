"""Eager local steps: what a step sets is not known from a graph, nor what later steps train."""

import dataclasses

import keras
import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand, several
from tests.local_steps.by_hand import CASES
from tests.local_steps.several import STEPS, Loop
from tests.local_steps.test_by_hand import check_equal_copies, mirrored
from tests.local_steps.test_several_steps import check_equal

LOCAL = [tfdist.LocalSGD(STEPS), tfdist.DiLoCo(STEPS)]


@pytest.mark.parametrize(
    "name",
    ["BatchNormalization, waiting", pytest.param("overflow, accumulation", marks=pytest.mark.full)],
)
def test_accumulation_equals_the_same_by_hand(name):
    case = dataclasses.replace(CASES[name], compiled={"run_eagerly": True}, epochs=2)
    model, _ = by_hand.fit(case, mirrored(case, 2))
    expected = by_hand.trained(case, 2).models[0]
    for actual, variable in zip(model.weights, expected.weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(actual.numpy() - variable.numpy()).max() <= case.tolerance, actual.path
    check_equal_copies(model.weights)


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("built", [False, pytest.param(True, marks=pytest.mark.full)])
def test_steps_of_two_optimizers_equal_the_same_by_hand(local, built):
    """As those of a GAN: at first the weights of the second optimizer are not known to be its."""
    owners = {"a": "first", "c": "second"}
    order = list("aacacaacac")
    model = Loop(local, owners, eager=True, built=built).train(order).finish()
    check_equal(model, several.by_hand(order, local))


def test_weights_meet_with_the_optimizer_that_trains_them_only():
    """Before its first update they may be anything that a step sets."""
    loop = Loop(LOCAL[0], {"a": "first", "c": "second"}, eager=True, built=False)
    rounds = loop.train("a").optimizers["first"].rounds
    weights = {id(v) for v in loop.model.heads["c"].weights}
    assert weights < {id(v) for v in rounds.changed}
    loop.train("c")
    assert not weights & {id(v) for v in rounds.changed}
    assert any(v is loop.model.teacher for v in rounds.changed)


@pytest.mark.parametrize("local", LOCAL)
def test_an_optimizer_that_is_applied_in_every_other_batch(local):
    order = ["a", "ac"] * 5

    class Model(several.Net):
        replicas = 0  # how many have begun a step

        def train_step(self, batch):
            x, y = batch
            kinds = order[self.replicas // 2]
            self.replicas += 1
            applies = {"a": self.optimizer.apply, "c": self.other.apply}
            return {"loss": self.train(kinds, x, y, applies)}

    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = Model()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        model.other = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
    x, y = several.data(len(order))
    model.fit(x, y, batch_size=several.BATCH, shuffle=False, verbose=0)
    check_equal(model, several.by_hand(order, local))


def test_optimizers_that_take_turns_are_refused_if_they_share_weights():
    class Model(several.Net):
        replicas = 0

        def train_step(self, batch):
            optimizer = (self.optimizer, self.other)[self.replicas // 2 % 2]
            self.replicas += 1
            return {"loss": self.train("a", *batch, {"a": optimizer.apply})}

    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=LOCAL[1])
    with strategy.scope():
        model = Model()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        model.other = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="the same weights in different steps"):
        model.fit(*several.data(4), batch_size=several.BATCH, verbose=0)
