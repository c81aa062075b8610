"""What leaves a host with several replicas, if these are grouped by host, and if they are not."""

import statistics

import pytest

from benchmarks import hierarchy
from tests.traffic import network
from tfdist.strategies.horovod.backend import is_installed

_REASON = network.reason_against()
_ELEMENTS, _TENSORS = 1_000_000, 4
# What calls, acknowledgements and headers come to, and Horovod's negotiation.
_OVERHEAD = 1.05

pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("multi_worker", marks=pytest.mark.full),
        pytest.param(
            "horovod", marks=pytest.mark.skipif(not is_installed(), reason="make horovod")
        ),
    ],
)
@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.full)])
def test_a_host_sends_what_one_replica_would_send(backend, hosts):
    found = hierarchy.measure(backend, hierarchy.UNLIMITED, hosts, _TENSORS, 3, _ELEMENTS)
    payload = 4 * _ELEMENTS * _TENSORS
    sent = {system: statistics.median(own["bytes"]) / payload for system, own in found.items()}
    replicas = hosts * hierarchy.LOCAL
    ring, groups = (2 * (count - 1) / count for count in (replicas, hosts))
    assert ring <= sent["tfdist, `ring`"]
    assert groups <= sent["tfdist, `hierarchical`"] <= _OVERHEAD * groups
    # One payload to each of the other hosts, instead of two to each of the other replicas. On a
    # busy machine Horovod's processes agree for longer, which counts beside small payloads.
    coded = sent["tfdist, `hierarchical`, topk"]
    assert coded <= 0.55 * sent["tfdist, `ring`, topk"]
