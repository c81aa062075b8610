"""What tests assert of local steps, of several processes or of the devices of one."""

import dataclasses

import numpy as np

from tests.local_steps import by_hand, own_steps, streamed
from tests.local_steps.by_hand import CASES
from tests.multi_process.scenarios.local_steps import DRIFTING


def by_hands(found):
    """`found` are the ranks' results of the scenario `by_hands`."""
    any_name = next(iter(found[0]))
    replicas = sum(len(rank[any_name]["own"]) for rank in found)
    for name in found[0]:
        case = CASES[name]
        expected = streamed.trained(case, replicas)
        for rank in found:
            for copies, variable in zip(
                rank[name]["weights"], expected.models[0].weights, strict=True
            ):
                for copy in copies:
                    if "float" in variable.dtype:
                        error = np.abs(copy - variable.numpy()).max()
                        assert error <= case.tolerance, (name, variable.path)
        equal_copies([rank[name]["weights"] for rank in found], name)
        own = [state for rank in found for state in rank[name]["own"]]
        for state, optimizer in zip(own, expected.optimizers, strict=True):
            rate = getattr(optimizer, "inner_optimizer", optimizer).learning_rate
            theirs = [v for v in optimizer.variables if v is not rate]
            for ours, their in zip(state, theirs, strict=True):
                error = np.abs(ours.astype("float64") - their.numpy()).max()
                assert error <= 2 * case.tolerance * max(1, np.abs(ours).max()), (name, their.path)
        # Nothing travels but in the condition in which a round ends.
        for rank in found:
            assert rank[name]["outside"] == [], name
            # Where the length is unknown, each step asks whether any process has data left.
            assert bool(rank[name]["in fit"]) == case.unknown, name


def equal_copies(of_ranks, name):
    """Asserts that all replicas of all ranks have the same bits."""
    for variables in zip(*of_ranks, strict=True):
        first, *others = [copy for copies in variables for copy in copies]
        assert all((copy == first).all() for copy in others), name


def resumed(found):
    """Resumed training is the same to the bit, on each replica."""
    for rank in found:
        whole = rank.pop("whole")
        assert len({*whole["weights"]}) == 1
        for name, actual in rank.items():
            assert actual["weights"] == whole["weights"], name
            for ours, theirs in zip(actual["own"], whole["own"], strict=True):
                for one, other in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=name)
        rank["whole"] = whole
    states = [state for rank in found for state in rank["whole"]["own"]]
    assert any((a != b).any() for a, b in zip(states[0], states[1])), "replicas have their own"


def looked_at(found):
    """Wherever a user looks, the weights are one model's."""
    for name in found[0]["bits"]:
        for time in zip(*(rank["bits"][name] for rank in found), strict=True):
            assert len({bits for rank in time for bits in rank}) == 1, name
    assert {*found[0]["bits"]} == {"evaluated", "saved", "epoch end", "train end", "after fit"}
    assert all(rank["losses"] == found[0]["losses"] for rank in found)
    assert found[0]["epochs"] == 2  # a loss that falls is worse than the first one here
    for rank in found:
        assert "`train_on_batch` returns after each step" in rank["error"]


def loop(found):
    """A loop of the user's own equals rounds by hand, and reports the mean loss."""
    case = CASES["momentum"]
    weights = [rank["weights"] for rank in found]
    equal_copies(weights, "loop")
    replicas = sum(len(rank["weights"][0]) for rank in found)
    expected = by_hand.trained(case, replicas)
    for (copy, *_), variable in zip(weights[0], expected.models[0].weights, strict=True):
        assert np.abs(copy - variable.numpy()).max() <= case.tolerance
    steps = zip(*(rank["reported"] for rank in found), strict=True)
    sums = [sum(value for rank in step for value in rank) for step in steps]
    np.testing.assert_allclose(sums, expected.losses, rtol=1e-4)
    for rank in found:
        assert "tfdist.local_step" in rank["unmarked"]


def after(found):
    """`after` many updates equal synchronous ones to the bit; then there are rounds."""
    for rank in found:
        for kept in (None, "int8"):
            plain = rank["synchronous", kept]
            for name in ("one step", "long after"):
                for ours, theirs in zip(rank[name, kept], plain, strict=True):
                    np.testing.assert_array_equal(ours, theirs, err_msg=name)
    for kept in (None, "int8"):
        equal_copies([rank["after", kept] for rank in found], "after")
    case = CASES["momentum"]
    replicas = sum(len(rank["after", None][0]) for rank in found)
    expected = by_hand.Replicas(case, replicas).train(synchronous=7)
    for (copy, *_), variable in zip(
        found[0]["after", None], expected.models[0].weights, strict=True
    ):
        assert np.abs(copy - variable.numpy()).max() <= case.tolerance
    (near, *_), (exact, *_) = found[0]["after", "int8"][0], found[0]["after", None][0]
    assert 0 < np.abs(near - exact).max() < 0.05


def compressed(found):
    """Coded differences leave the replicas equal, and train."""
    for name in found[0]:
        assert len({bits for rank in found for bits in rank[name][0]}) == 1, name
        losses = found[0][name][1]
        assert losses[-1] < 0.9 * losses[0]


def drift(found):
    """The logs have the replicas' distances to their mean, for the way of this mean."""
    replicas = by_hand.Replicas(DRIFTING, found[0]["replicas"])
    anchor = np.concatenate([weights.ravel() for weights in replicas.anchor])
    x, y = DRIFTING.data()
    for start in range(0, len(x), DRIFTING.batch):
        replicas.step(x[start : start + DRIFTING.batch], y[start : start + DRIFTING.batch])
    share = replicas.samples / replicas.samples.sum()
    own = [
        np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
        for model in replicas.models
    ]
    mean = sum(part * weights for part, weights in zip(share, own))
    squares = sum(part * np.sum((weights - mean) ** 2) for part, weights in zip(share, own))
    expected = np.sqrt(squares) / np.linalg.norm(mean - anchor)
    assert expected > 0.05
    for rank in found:
        np.testing.assert_allclose(rank["drift"], [expected], rtol=1e-3)


def all_that_steps_set(found):
    """Everything equals the same by hand, and is the same on all replicas."""
    for name, case in (("mean", own_steps.MEAN), ("outer", own_steps.OUTER)):
        weights = [rank[name] for rank in found]
        equal_copies(weights, name)
        replicas = sum(len(rank[0]) for rank in weights)
        expected = own_steps.trained(case, replicas).models[0].weights
        for (copy, *_), variable in zip(weights[0], expected, strict=True):
            if "float" in variable.dtype:
                error = np.abs(copy - variable.numpy()).max()
                assert error <= case.tolerance, (name, variable.path)


def after_loading(found):
    """Rounds go on, as without an interruption."""
    iterations = [int(copy) for rank in found for copy in rank["iterations"]]
    assert iterations[0] >= 14 > iterations[-1]  # by its own counter each would do another thing
    weights = [rank["weights"] for rank in found]
    equal_copies(weights, "after loading")
    expected = by_hand.Replicas(own_steps.UNEVEN, len(iterations)).train(epochs=5, synchronous=2)
    for (copy, *_), variable in zip(weights[0], expected.models[0].weights, strict=True):
        assert np.abs(copy - variable.numpy()).max() <= own_steps.UNEVEN.tolerance


def interrupted(found):
    """`compile` ends the round, and so does another model that shares layers."""
    first, *_, last = [copy for rank in found for copy in rank["apart"][0]]
    assert (first != last).any()
    for name in ("compiled", "trained", "shared"):
        equal_copies([rank[name] for rank in found], name)


def logs(found):
    """All ranks report the mean over the samples of the last batch, and decide by it."""
    for rank in found:
        assert rank == found[0]
    without, validated = found[0].pop("validated")
    assert validated == without and "accuracy" in validated
    for rows, rank in found[0].items():
        case = dataclasses.replace(CASES["sgd"], rows=rows)
        own = rank["history"]["own"]
        losses = by_hand.Replicas(case, len(found)).train(epochs=len(own) + 1).losses
        last = losses[4:-5:5]
        np.testing.assert_allclose(own, last, rtol=1e-4)
        np.testing.assert_allclose(rank["best"], min(last), rtol=1e-4)
        np.testing.assert_allclose(rank["batches"], losses[-5:], rtol=1e-4)


def lossless(found):
    """A codec that sends everything changes nothing, fragment by fragment."""
    weights = [rank["weights"] for rank in found]
    equal_copies(weights, "lossless")
    case = streamed.STREAMED["both, the mean"]
    expected = streamed.trained(case, sum(len(rank[0]) for rank in weights))
    for (copy, *_), variable in zip(weights[0], expected.models[0].weights, strict=True):
        assert np.abs(copy - variable.numpy()).max() <= case.tolerance


def coded(found):
    """Each fragment is coded with error feedback, leaves the replicas equal, and trains."""
    for name in ("qsgd", "powersgd"):
        assert len({bits for rank in found for bits in rank[name]["bits"]}) == 1, name
        losses = found[0][name]["losses"]
        assert losses[-1] < 0.9 * losses[0]
    for rank in found:
        assert len(rank["qsgd"]["residuals"]) == 2  # a part for each fragment
        for residual in rank["qsgd"]["residuals"]:
            assert np.abs(residual).max() > 0
        assert min(rank["qsgd"]["ratios"]) > 4  # of all fragments
