"""What policies do in training, on real servers in one process."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("parameter_server")


@pytest.mark.scenario("factors")
def test_the_learning_rate_is_scaled_and_not_the_gradient(found):
    """Adam would undo a scaled gradient."""
    assert set(found) == {"SGD", "Adam"}
    for whole, quarter in found.values():
        np.testing.assert_allclose(quarter, whole / 4, rtol=1e-4)


@pytest.mark.scenario("compensation")
def test_a_stale_gradient_is_compensated_as_in_the_paper(found):
    gradient, moved = 3.0, 0.25
    np.testing.assert_allclose(found[False], 0.5 - (gradient + 2 * gradient**2 * moved), rtol=1e-6)
    lam = 2 / np.sqrt(0.05 * gradient**2 + 1e-7)
    expected = 0.5 - (gradient + lam * gradient**2 * moved)
    np.testing.assert_allclose(found[True], expected, rtol=1e-6)


@pytest.mark.scenario("pending")
def test_one_step_at_a_time_is_never_stale(found):
    assert found.updates == 15
    assert found.max_staleness == 0


@pytest.mark.scenario("leftovers")
def test_gradients_that_an_epoch_left_are_as_stale_as_the_oldest_of_them(found):
    way, report = found["any"]
    assert way == 1 + 10
    assert report.max_staleness == 2
    assert report.drops == 0


@pytest.mark.scenario("leftovers")
def test_gradients_that_an_epoch_left_are_dropped_when_they_are_too_stale(found):
    way, report = found["bounded"]
    assert way == 10 + 100
    assert report.max_staleness <= 1
    assert report.drops == 1


@pytest.mark.scenario("bounds")
def test_no_gradient_beyond_the_bound_is_applied(found):
    assert found["drop"].max_staleness == 0
    assert found["drop"].drops + found["drop"].updates == 60
    assert found["drop"].drops > 0
    assert found["wait"].max_staleness == 0
    assert found["wait"].drops == 0
    assert found["wait"].updates == 60
    assert found["wait and divide"].max_staleness <= 1
    assert found["wait and divide"].updates == 60


@pytest.mark.parametrize("policy", ["drop", "wait"])
@pytest.mark.scenario("logged")
def test_what_policies_do_reaches_history_and_tensorboard(found, policy):
    report = found[f"{policy}, report"]
    expected = {
        "staleness": report.mean_staleness,
        "staleness_max": report.max_staleness,
        "dropped": report.drops,
        "waits": report.waits,
        "effective_learning_rate": 0.25 / 2,
    }
    for logs in found[policy]:
        assert {name: logs[name] for name in expected} == pytest.approx(expected)


@pytest.mark.scenario("logged")
def test_dropped_gradients_and_those_that_are_held_back_are_counted(found):
    assert found["drop, report"].drops > 0
    assert found["drop, report"].waits == 0
    assert found["wait, report"].drops == 0
    assert found["wait, report"].waits > 0
