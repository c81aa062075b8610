"""Gradients that reducers sum: training equals one device."""

import pytest

from tests.equivalence import compare
from tests.equivalence.columns import REDUCED
from tests.equivalence.parameters import cells


@pytest.mark.parametrize(("column", "feature"), list(cells(REDUCED, {})))
def test_training_with_reducers_equals_one_device(column, feature, results):
    ranks = results.of(column, feature)
    problems = compare.problems(ranks, results.reference(feature), None, history=feature.history)
    assert not problems, "\n".join(problems)
