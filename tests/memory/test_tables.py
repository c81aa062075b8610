"""Tables whose gradients have rows: accumulated, they are whole; with few rows, they stay whole."""

import keras
import pytest

from tfdist import memory
from tfdist.memory import at_start
from tfdist.options import Options

WIDTH = 64


def model_of(rows, width=WIDTH, optimizer="sgd"):
    table = keras.layers.Embedding(rows, width)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten()])
    model.compile(optimizer, "mse")
    return model


TABLE = 4 * 1000 * WIDTH


def test_accumulated_gradients_are_whole_tables():
    def found(sharding, replicas, steps):
        return memory.estimate(model_of(1000), 8, sharding, replicas, accumulation_steps=steps)

    samples = 8 * 3 * 4 * WIDTH
    assert found(None, 1, 1).gradients == samples
    assert found(None, 1, 2).gradients == 2 * TABLE
    both = found("optimizer", 2, 2)
    assert (both.gradients, both.exchange) == (2 * TABLE, TABLE // 2)
    assert found("gradients", 2, 2).gradients == TABLE + TABLE // 2
    # The rows of a step travel as rows. A part of the step is whole, and one of all steps.
    assert found("parameters", 2, 2).gradients == samples // 2 + TABLE // 2 + TABLE // 2
    assert found("parameters", 2, 1).gradients == samples // 2


def said(model, free, replicas=1, **options):
    place = at_start.Place(Options(**options), replicas, replicas, free)
    return at_start.what_does_not_fit(model, place)


def test_fit_counts_accumulated_tables():
    assert said(model_of(1000), 0.5 * TABLE) is None
    assert "do not fit" in said(model_of(1000), 1.9 * TABLE, accumulation_steps=2)
    assert said(model_of(1000), 3.1 * TABLE, accumulation_steps=2) is None


FEW = {"rows": 9, "width": 4096}  # eight parts of two rows would be much larger


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_a_table_with_few_rows_is_refused(sharding):
    with pytest.raises(ValueError, match="too few rows.*Received: .*embeddings"):
        memory.estimate(model_of(**FEW), 16, sharding, 8)
    assert memory.estimate(model_of(**FEW), 18, sharding, 9).total > 0
    assert memory.estimate(model_of(**FEW), 16, sharding, 1).total > 0


def test_a_table_with_few_rows_may_be_accumulated():
    model = model_of(**FEW)
    assert memory.estimate(model, 16, "optimizer", 8, accumulation_steps=2).total > 0
    with pytest.raises(ValueError, match="too few rows"):  # where each step sums its rows
        memory.estimate(model, 16, "parameters", 8, accumulation_steps=2)
    owned = model_of(**FEW, optimizer=keras.optimizers.Lamb())
    assert memory.estimate(owned, 16, "optimizer", 8).total > 0


@pytest.mark.full
def test_no_sharding_is_named_that_refuses_the_table():
    size = 4 * 9 * 4096
    few, more = (model_of(rows, 4096, "adam") for rows in (9, 16))
    assert "Try a machine with more memory" in said(few, 8 * size, replicas=8)
    assert 'Try `sharding="optimizer"`' in said(more, 8 * size, replicas=8)
