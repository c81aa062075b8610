"""Parts of batches whose sizes change after every step: training equals one device."""

import pytest

from tests.equivalence import compare
from tests.equivalence.columns import BALANCED
from tests.equivalence.parameters import cells

# Single batches, which Keras does not distribute, have even parts.
_NOT_CUT = ("train_on_batch, test_on_batch, predict_on_batch",)
# Losses, statistics, counters and results that depend on who has how many samples.
_USUAL = {
    "mirrored-3-balance": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "last batch of 1 sample",
        "masked mean by hand, last batch of 3",
        "run_eagerly",
        "synchronized BatchNormalization, last batch of 3",
    ),
}


@pytest.mark.parametrize(("column", "feature"), list(cells(BALANCED, _USUAL, _NOT_CUT)))
def test_training_with_moving_shares_equals_one_device(column, feature, results):
    ranks = results.of(column, feature)
    problems = compare.problems(ranks, results.reference(feature), None, history=feature.history)
    assert not problems, "\n".join(problems)
