"""What tests assert of the states of all ranks."""

import numpy as np

WEIGHTS = {"atol": 5e-6, "rtol": 1e-5}
METRICS = {"atol": 1e-6, "rtol": 2e-5}


def equal(found, state="state"):
    """The state, of which all replicas of all ranks have the same bits."""
    bits = {bits for rank in found for bits in rank[state]["bits"]}
    assert len(bits) == 1, f"{state}: the ranks differ"
    return found[0][state]


def trained(found, expected, state="state", extra_iterations=0):
    """Asserts that all ranks have the weights and the optimizer of `expected`, a `OneDevice`.

    Args:
        found: what the ranks found out.
        expected: the reference.
        state: the key of the ranks' states.
        extra_iterations: how many steps more than updates the optimizer may have counted. On any
            number of devices Keras counts one where it finds that data of unknown length end.
    """
    actual = equal(found, state)
    assert 0 <= actual["iterations"] - expected.iterations <= extra_iterations
    for name in ("weights", "velocity"):
        for ours, theirs in zip(actual[name], getattr(expected, name), strict=True):
            np.testing.assert_allclose(ours, theirs, **WEIGHTS, err_msg=f"{state}: {name}")


def metrics(actual, expected):
    """Asserts that dicts of numbers or lists of them are equal, but for rounding."""
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, **METRICS, err_msg=name)


def history(found, expected, key="history"):
    """Asserts that all ranks report the same history, that of `expected`, a `OneDevice`."""
    assert all(rank[key] == found[0][key] for rank in found)
    metrics(found[0][key], expected.history)


def assert_sums_of_gradients(found):
    """The gradients that `scenarios.engines.gradients_in` found in each rank are right."""
    replicas = sum(len(rank) for rank in found)
    total = np.array([1.0, 2.0]) * replicas * (replicas + 1) / 2
    for rank in found:
        for gradient in rank:
            np.testing.assert_allclose(gradient, 2 * total * replicas, rtol=1e-6)
