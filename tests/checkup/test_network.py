"""`tfdist test` on hosts of their own, one of which has a slow link."""

import json
import sys

import pytest

from tests.traffic import network
from tfdist.strategies.horovod.backend import is_installed

_REASON = network.reason_against()
_NO_HOROVOD = pytest.mark.skipif(not is_installed(), reason="make horovod")
_FAST, _SLOW, _BURST = "400mbit", "20mbit", "32kb"

pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["multi_worker", pytest.param("horovod", marks=_NO_HOROVOD)])
def test_a_host_with_a_slow_link_is_named(backend, tmp_path):
    command = [sys.executable, "-m", "tests.checkup.rank", "1", "-1", backend, str(tmp_path)]
    with network.hosts(3, _FAST, _BURST) as made:
        made[2].limit(_SLOW, _BURST)
        network.run_ranks(made, command, tmp_path, {"TF_CPP_MIN_LOG_LEVEL": "3"}, 180)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["ranks"], found["ranks_per_host"], found["hosts"]) == (3, 1, 3)
    # The limit of the slow host, less what headers and a busy machine take.
    assert 0.4 < found["link"]["bandwidth_bytes_per_second"] / (20e6 / 8) < 1.2
    (problem,) = found["problems"]
    assert problem.startswith("All links of host ") and "(host 2) are slow" in problem
    assert [(tmp_path / f"status-{rank}").read_text() for rank in range(3)] == ["1", "0", "0"]
    assert problem in (tmp_path / "0.log").read_text()
