"""What ranks keep for themselves, by hand: who adds what others have handed over, and when."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.elastic.residuals import Residuals
from tfdist.elastic.state import Made


@pytest.fixture
def rank():
    """A rank with one such variable and another one."""
    made = Made()
    variables = tf.Variable([9.0, 9.0]), tf.Variable([1.0, 2.0])
    for variable in variables:
        made.note(variable)
    residuals = Residuals(made)
    residuals.note(variables[1], lambda: tf.zeros([2]))
    residuals.inherited = {5: {1: np.array([10.0, 20.0], "float32")}}
    return residuals, variables[1], variables


def test_only_the_noted_variables_are_handed_over(rank):
    residuals, _, _ = rank
    assert {n: v.tolist() for n, v in residuals.given().items()} == {1: [1.0, 2.0]}


def test_whoever_is_still_there_keeps_its_own(rank):
    residuals, _, _ = rank
    assert residuals.pending([0, 5]) == []
    assert residuals.pending([0, 1]) == [5]


@pytest.mark.parametrize(("held", "adds"), [([[5], [5]], 0), ([[], [5], [5]], 1), ([[5]], 0)])
def test_the_first_that_has_it_adds_it(rank, held, adds):
    residuals, own, _ = rank
    for place in range(len(held)):
        residuals.choose_who_adds(held, place)
        residuals.begin()
        assert own.numpy().tolist() == ([11.0, 22.0] if place == adds else [1.0, 2.0])
        residuals.undo()
        assert own.numpy().tolist() == [1.0, 2.0]


def test_it_is_added_once(rank):
    residuals, own, _ = rank
    residuals.choose_who_adds([[5]], 0)
    residuals.begin()
    residuals.complete()
    residuals.begin()
    assert own.numpy().tolist() == [11.0, 22.0]
    assert residuals.pending([0]) == []


def test_one_that_is_behind_gets_what_it_had_after_its_own_part(rank):
    residuals, own, _ = rank
    residuals.choose_who_adds([[5]], 0)
    residuals.begin()
    own.assign([0.5, 0.25])  # the step
    residuals.note_own_part()
    residuals.undo()
    assert own.numpy().tolist() == [1.0, 2.0]
    residuals.catch_up()
    assert own.numpy().tolist() == [0.5, 0.25]


def test_one_that_is_behind_in_a_sum_adds_what_it_was_to_add(rank):
    residuals, own, _ = rank
    residuals.choose_who_adds([[5]], 0)
    residuals.begin()
    residuals.undo()
    residuals.catch_up()
    assert own.numpy().tolist() == [11.0, 22.0]


def test_one_that_joins_has_nothing(rank):
    residuals, own, variables = rank
    residuals.start_anew()
    assert own.numpy().tolist() == [0.0, 0.0]
    assert variables[0].numpy().tolist() == [9.0, 9.0]
