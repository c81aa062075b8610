"""Faults in parameter server jobs: real processes, on hosts of their own where networks fail."""

import pytest

from tests.faults import server_rows, servers_job
from tests.traffic import network

REASON = network.reason_against()
USUAL = {("a worker dies", "synchronous")}


def _cases():
    for policy in servers_job.POLICIES:
        for name, fault in server_rows.FAULTS.items():
            marks = [] if (name, policy) in USUAL else [pytest.mark.full]
            if fault.around == "hosts":
                marks.append(pytest.mark.skipif(bool(REASON), reason=REASON))
            yield pytest.param(name, policy, marks=marks)


@pytest.mark.parametrize(("name", "policy"), list(_cases()))
def test_training_goes_on_or_ends_as_it_should(name, policy, tmp_path):
    server_rows.inject(name, policy, tmp_path)
