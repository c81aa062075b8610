"""Rounds by time: slow ranks make fewer updates, and the result equals the same by hand."""

import numpy as np

from tests.local_steps import checks
from tests.local_steps.timed import MEAN, TIMED, Timed
from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import timed

JOBS = ("multi_worker-2", "horovod-2", "multi_worker-3", "horovod-3", "multi_worker-2x2")


def _check_by_hand(found, case, epochs):
    for rank in found:
        for key in ("plans", "plan_of_step"):
            assert rank[key] == found[0][key]
    checks.equal_copies([rank["weights"] for rank in found], case)
    own = [state for rank in found for state in rank["own"]]
    expected = Timed(case, len(own), found[0]["plans"], found[0]["plan_of_step"])
    expected.train(epochs)
    if not case.compiled and "after" not in case.local[1]:
        of_ranks = [rank["samples"] for rank in found]
        samples = [[n for own in step for n in own] for step in zip(*of_ranks, strict=True)]
        assert samples == [np.diff(cuts).tolist() for cuts in expected.cuts]
    for (copy, *_), variable in zip(found[0]["weights"], expected.models[0].weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(copy - variable.numpy()).max() <= case.tolerance, variable.path
    for state, optimizer in zip(own, expected.optimizers, strict=True):
        theirs = [v for v in optimizer.variables if v is not optimizer.learning_rate]
        for ours, their in zip(state, theirs, strict=True):
            assert np.abs(ours.astype("float64") - their.numpy()).max() <= 2 * case.tolerance
    return expected


@scenario(timed.by_hands, JOBS)
def test_rounds_by_time_equal_the_same_by_hand(found):
    for name, case in TIMED.items():
        of_case = [rank[name] for rank in found]
        expected = _check_by_hand(of_case, case, case.epochs)
        assert len(of_case[0]["plans"]) >= 3, "there were rounds to plan"
        made = [int(optimizer.iterations) for optimizer in expected.optimizers]
        local = len(made) // len(found)
        slow, others = made[local : 2 * local], made[:local] + made[2 * local :]
        assert max(slow) < min(others), name  # rank 1 is four times slower
        for rank in of_case:
            logs = [rank["history"][f"updates_per_round_{r}"] for r in range(len(made))]
            assert logs == [
                of_case[0]["history"][f"updates_per_round_{r}"] for r in range(len(made))
            ]
            assert np.array(logs)[local].sum() < np.array(logs)[0].sum()


@scenario(timed.resumed, JOBS[:2])
def test_a_resumed_training_begins_with_equal_parts_and_goes_on(found):
    expected = _check_by_hand(found, MEAN, 2)
    first = found[0]["plan_of_step"][len(expected.cuts) // 2]
    assert found[0]["plans"][first] == (1, ((0.5, 0.5),))


@scenario(timed.refusals, JOBS[:2])
def test_what_cannot_be_planned_is_refused(found):
    for rank in found:
        assert "assert_cardinality" in rank["unknown"]
        for name in ("distributed", "divided"):
            assert "not one that was distributed before" in rank[name], name
        assert "so tfdist must divide them" in rank["loop"]


@scenario(timed.slow_at_first, JOBS[:2])
def test_a_rank_that_was_slow_takes_part_in_each_epoch(found):
    for rank in found:
        assert rank == found[0]
        for of_rank in rank:
            assert min(of_rank) > 0, rank
