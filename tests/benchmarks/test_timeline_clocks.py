"""The benchmark of Timeline's clocks runs, and counts what it finds."""

import json

import pytest

from benchmarks import timeline_clocks
from tests.benchmarks.running import between, run


@pytest.mark.full
def test_true_errors_are_within_the_stated_ones(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- timeline_clocks:begin -->\n<!-- timeline_clocks:end -->\nafter\n")
    given = ["--systems", "multi_worker", "multi_worker, elastic", "--ranks", "2", "--rounds", "1"]
    printed = run("timeline_clocks", *given, "--json", str(result), "--update", str(page))
    options = "--systems multi_worker 'multi_worker, elastic' --ranks 2 --rounds 1"
    assert f"Made by `python -m benchmarks.timeline_clocks {options} --update`." in printed
    measured = json.loads(result.read_text())
    assert [(name, ranks) for name, ranks, _ in measured] == [(given[1], 2), (given[2], 2)]
    for _, _, (job,) in measured:
        ((offset, error),) = job["clocks"]
        assert abs(offset) <= error and job["seconds"] > 0
    assert printed == between(page, "timeline_clocks")


def test_the_worst_of_all_jobs_is_shown():
    jobs = [
        {"seconds": 0.5, "clocks": [[1e-4, 2e-4], [-3e-4, 9e-4]]},
        {"seconds": 1.5, "clocks": [[0.0, 1e-4], [1e-5, 1e-3]]},
    ]
    cells = timeline_clocks.row("horovod", 3, jobs)
    assert cells == ["horovod", "3", "0.300 ms", "1.000 ms", "0.50", "1.00 s", "1.50 s"]
