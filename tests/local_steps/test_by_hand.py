"""Under `fit`, H local steps equal the same computed by hand on each replica."""

import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand


def mirrored(case, replicas):
    name, arguments = case.local
    devices = [f"CPU:{number}" for number in range(replicas)]
    local = getattr(tfdist, name)(**arguments)
    return tfdist.MirroredStrategy(devices, local=local, **case.options)


def copies_of(variables):
    """For each variable, the values of all replicas."""
    return [[copy.numpy() for copy in v.value.values] for v in variables]


def check_equal_copies(variables):
    for variable, copies in zip(variables, copies_of(variables)):
        assert all((copy == copies[0]).all() for copy in copies), variable.path


# Each with something of its own; the rest takes minutes.
_USUAL = (
    "adamw",
    "accumulation, empty parts",
    "several steps per execution",
    "BatchNormalization, accumulation",
    "embedding",
    "overflow, accumulation",
    "outer momentum, everything",
)


def _param(name):
    return pytest.param(name, marks=() if name in _USUAL else pytest.mark.full)


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", map(_param, by_hand.CASES))
def test_fit_equals_the_same_by_hand(name, replicas):
    case = by_hand.CASES[name]
    expected = by_hand.trained(case, replicas)
    model, _ = by_hand.fit(case, mirrored(case, replicas))
    for actual, variable in zip(model.weights, expected.models[0].weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(actual.numpy() - variable.numpy()).max() <= case.tolerance, actual.path
    check_equal_copies(model.weights)
    # Each replica has its own optimizer state, and has counted its own updates.
    inner = model.optimizer.unwrap()
    own = zip(*(optimizer.variables for optimizer in expected.optimizers), strict=True)
    for variable, theirs in zip(inner.variables, own, strict=True):
        if not variable.path.endswith("learning_rate"):
            (copies,) = copies_of([variable])
            for copy, their in zip(copies, theirs):
                error = np.abs(copy.astype("float64") - their.numpy()).max()
                assert error <= 2 * case.tolerance * max(1.0, np.abs(copy).max()), variable.path
