"""A loop of TensorFlow's own coordinator runs with tfdist's strategy as it does without."""

import pytest

from tests.own_loops import styles
from tests.parameter_server.loops_scenarios import STEPS, batch

pytestmark = pytest.mark.xdist_group("parameter_server")


@pytest.mark.scenario("tutorial")
def test_tensorflows_loop_equals_one_device(found):
    loop = styles.Tutorial()
    losses = [float(loop.train(*batch())) for _ in range(STEPS)]
    expected = {"losses": losses, "weights": loop.weights, "metrics": []}
    assert styles.differences(found, expected) == {}


@pytest.mark.scenario("tutorial")
def test_the_optimizer_of_fit_is_refused_there(found):
    assert "use the Keras optimizer itself. Received: an apply of" in found["error"]
