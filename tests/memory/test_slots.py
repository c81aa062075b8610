"""What optimizers keep for each weight, also those that look at the path of a weight."""

import keras
import numpy as np
import pytest

from tfdist.memory import tracing
from tfdist.memory.sizes import nbytes
from tfdist.plan import tracing as plan


def some_model(optimizer):
    hidden = keras.layers.Embedding(50, 8), keras.layers.Flatten(), keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *hidden])
    model.compile(optimizer, "mse")
    return model


def by_path(**rules):
    given = {f".*{name}": keras.optimizers.get(optimizer) for name, optimizer in rules.items()}
    chosen = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), given)
    return keras.optimizers.MultiOptimizer(chosen)


def muon(**options):
    if not hasattr(keras.optimizers, "Muon"):
        pytest.skip("this Keras has no Muon")
    return keras.optimizers.Muon(**options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(momentum=0.9),
        lambda: keras.optimizers.Adam(use_ema=True),
        keras.optimizers.ScheduleFreeAdamW,
        muon,
        lambda: muon(exclude_embeddings=False),
        lambda: muon(exclude_layers=["dense"]),
        lambda: by_path(kernel="adam"),
        lambda: by_path(embeddings="adam", bias="rmsprop"),
    ],
)
def test_they_are_those_that_training_makes(make):
    model = some_model(make())
    found = tracing.slot_bytes(model)
    planned = plan.trace(model, plan.specs_of(model, 8), 8, model.optimizer)
    assert not model.optimizer.built
    model.optimizer.build(model.trainable_variables)
    made = sum(nbytes(v) for v in model.optimizer.variables if len(v.shape))
    assert found == planned.slot_bytes == made > 0


def test_the_path_of_a_weight_may_have_any_characters():
    odd = keras.Variable(np.zeros((2, 3), np.float32), name="a weight: ä")
    assert tracing.slots_of(keras.optimizers.Adam(), [odd]) == 2 * 4 * 6


def test_a_strategy_accumulates_in_place_of_the_optimizer():
    model = some_model(keras.optimizers.SGD(momentum=0.9, gradient_accumulation_steps=2))
    weights = sum(map(nbytes, model.trainable_variables))
    assert tracing.slot_bytes(model) == 2 * weights
    planned = plan.trace(model, plan.specs_of(model, 8), 8, model.optimizer)
    assert planned.slot_bytes == weights
