"""The benchmark of elastic jobs runs; no time is asserted."""

import json

import pytest

from tests.benchmarks.running import between, run
from tests.traffic import network


@pytest.mark.full
def test_fixed_and_elastic_jobs_take_turns(tmp_path):
    if reason := network.reason_against():
        pytest.skip(reason)
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- elastic:begin -->\n<!-- elastic:end -->\nafter\n")
    options = ["--engines", "multi_worker", "--jobs", "1", "--steps", "8", "--units", "32"]
    printed = run("elastic", *options, "--json", str(result), "--update", str(page))
    (found,) = json.loads(result.read_text()).values()
    assert len(found["fixed"]) == len(found["elastic"]) == 4
    assert len(found["recovery"]) == len(found["joined"]) == len(found["joining"]) == 1
    assert found["joined"][0] > found["joining"][0]
    assert found["spare joined"][0] > 0
    assert printed.endswith(between(page, "elastic"))
