"""What really leaves a host's interface, for every compressor, beside what is stated."""

import json
import sys

import pytest

from tests.compression.replicas import COMPRESSING, name_of
from tests.traffic import network
from tfdist.strategies.horovod.backend import is_installed

_REASON = network.reason_against()
# Bytes that a collective operation costs besides the payload, for each of the other ranks: calls,
# acknowledgements and headers, and Horovod's negotiation. docs/compression.md states them.
_PER_OPERATION = {"multi_worker": 1600, "horovod": 3000}
# Horovod's ranks meet in every cycle, also while they compute, so a slow machine sends more.
_CYCLE_SECONDS = 0.01
_PER_CYCLE = {"multi_worker": 0, "horovod": 500}
_DEADLINE = 240

pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """By rank and compressor, the bytes per step that were sent and stated."""
    backend, count = request.param
    folder = tmp_path_factory.mktemp("traffic")
    variables = {"TF_NUM_INTRAOP_THREADS": "1"}
    variables["HOROVOD_CYCLE_TIME"] = f"{1000 * _CYCLE_SECONDS:g}"
    command = [sys.executable, "-m", "tests.traffic.rank", backend]
    with network.hosts(count) as hosts:
        network.run_ranks(hosts, command, folder, variables, _DEADLINE)
    return backend, [json.loads((folder / f"{i}.json").read_text()) for i in range(count)]


def _jobs():
    for backend in ("multi_worker", "horovod"):
        for count in (2, 3):
            marks = [pytest.mark.xdist_group(f"traffic {backend} {count}"), pytest.mark.full]
            if backend == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param((backend, count), marks=marks, id=f"{backend}-{count}")


@pytest.mark.parametrize("found", list(_jobs()), indirect=True)
@pytest.mark.parametrize("compressor", [name_of(compressor) for compressor in COMPRESSING])
def test_no_more_bytes_leave_than_stated(found, compressor):
    backend, ranks = found
    for rank in ranks:
        sent, stated = rank[compressor]["sent"], rank[compressor]["stated"]
        apart = backend == "horovod" or len(ranks) > 2
        halves = apart and compressor.startswith("fp16")
        operations = 2 if halves or compressor.startswith("powersgd") else 1
        overhead = operations * _PER_OPERATION[backend]
        overhead += rank[compressor]["seconds"] / _CYCLE_SECONDS * _PER_CYCLE[backend]
        overhead *= len(ranks) - 1
        assert stated <= sent <= 1.02 * stated + 1000 + overhead
