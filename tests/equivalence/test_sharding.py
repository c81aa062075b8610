"""Optimizer state and accumulated gradients in parts: training equals one device."""

import pytest

from tests.equivalence import compare
from tests.equivalence.columns import IN_PARTS, SHARDED
from tests.equivalence.parameters import cells

_USUAL = {
    "mirrored-2-sharded": (
        "Lamb",
        "ModelCheckpoint",
        "two optimizers (GAN)",
    ),
    "mirrored-2-parameters": (
        "add_loss",
        "tied weights (Embedding)",
        "two optimizers (GAN)",
    ),
    "mirrored-3-parameters": ("accumulation_steps=3, steps_per_execution=4, remainders",),
    "mirrored-3-sharded": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "last batch of 1 sample",
        "synchronized BatchNormalization, last batch of 3",
    ),
}


@pytest.mark.parametrize(("column", "feature"), list(cells((*SHARDED, *IN_PARTS), _USUAL)))
def test_sharded_training_equals_one_device(column, feature, results):
    ranks = results.of(column, feature)
    refusal = column.refusal(feature)
    if refusal:
        assert refusal in ranks[0].refused
        return
    problems = compare.problems(ranks, results.reference(feature), None, history=feature.history)
    assert not problems, "\n".join(problems)
