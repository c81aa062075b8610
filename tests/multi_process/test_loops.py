"""Training loops of the ranks' own equal one device."""

import pytest
import tensorflow as tf

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import loops
from tests.own_loops import styles


def _equal_one_device(found):
    for name in found[0]:
        style = getattr(styles, name)
        expected = styles.run(style, tf.distribute.get_strategy(), function=False)
        for rank in found:
            assert styles.differences(rank[name], expected) == {}, name
            assert rank[name]["weights"] == found[0][name]["weights"], name


@pytest.mark.full
@scenario(loops.tutorials)
def test_tensorflows_tutorials_equal_one_device(found):
    _equal_one_device(found)


@pytest.mark.full
@scenario(loops.keras_losses)
def test_keras_losses_equal_one_device(found):
    _equal_one_device(found)


@pytest.mark.full
@scenario(loops.means)
def test_means_computed_by_hand_equal_one_device(found):
    _equal_one_device(found)


@scenario(loops.built_in_the_first_step)
def test_what_is_built_in_the_first_step_equals_one_device(found):
    _equal_one_device(found)


@pytest.mark.full
@scenario(loops.wrapped_and_built_in_the_first_step)
def test_a_wrapped_optimizer_that_is_built_in_the_first_step_equals_one_device(found):
    _equal_one_device(found)


@scenario(loops.refused)
def test_a_loss_that_cannot_be_told_apart_is_refused_by_all_ranks(found):
    for rank in found:
        assert rank["error"].startswith("ValueError: It cannot be told whether this loss")


@scenario(loops.loss_in_a_condition)
def test_a_loss_of_all_ranks_on_a_condition_of_each_is_refused(found):
    for rank in found:
        assert "RuntimeError: `merge_call` called while defining a new" in rank["error"]
