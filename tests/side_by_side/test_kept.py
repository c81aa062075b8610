"""A file of results holds what tables and charts read, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.side_by_side.results import Results
from benchmarks.side_by_side.systems import SYSTEMS
from tests.side_by_side import reading

STORED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("side_by_side-*.json"))
# Of a launch without its steps, and of a step: seconds or a loss.
LAUNCH_BYTES, STEP_BYTES = 600, 12


PLACE = {"round": 0, "work": "mlp", "hosts": 2, "batch": 32, "loopback": ""}


def launch_of(system: str, work: str) -> dict:
    """As `__main__.run` makes it, with numbers as a clock gives them."""
    seconds = [1 / 13 if SYSTEMS[system].single else 1 / 7] * 40
    phases = [
        {"rate": rate, "links": [1e8 / 3] * 2, "seconds": seconds, "bytes": 4e6 / 3}
        for rate in ("unlimited", "1gbit")
    ]
    found = {"phases": phases, "losses": [1 / 3] * 80, "peak_bytes": 10**9, "parameters": 10**6}
    found |= {"versions": {"numpy": "2.0"}, "took": 100 / 3}
    return PLACE | {"system": system, "work": work} | found


LAUNCHES = [
    launch_of(system, work)
    for system in ("tfdist-horovod", "tfdist-horovod-topk", "keras", "horovod", "tf-keras")
    for work in ("digits", "mlp", "variables-10", "variables-1000")
]


def check(path: Path) -> None:
    assert reading.unread(path) == []
    for run in json.loads(path.read_text())["runs"]:
        steps = sum(len(phase["seconds"]) for phase in run.get("phases", ()))
        steps += len(run.get("losses", ()))
        size = len(json.dumps(run, separators=(",", ":")))
        assert size < LAUNCH_BYTES + STEP_BYTES * steps, run


def test_no_more_is_written_than_is_read(tmp_path):
    path = tmp_path / "plan.json"
    results = Results(path, "quick", {}, False)
    for launch in LAUNCHES:
        results.add(launch)
    results.add(PLACE | {"system": "mwms", "error": "Traceback\n" * 500 + "ValueError: no"})
    check(path)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_files_hold_no_more_than_is_read(path):
    check(path)


def test_a_launch_is_a_line(tmp_path):
    path = tmp_path / "plan.json"
    results = Results(path, "quick", {}, False)
    results.add(LAUNCHES[0])
    before = path.read_text().splitlines()
    results.add(LAUNCHES[1])
    after = path.read_text().splitlines()
    assert len(after) == len(before) + 1
    assert json.loads(before[1]) == json.loads(after[1].rstrip(","))


def test_versions_are_those_of_all_launches(tmp_path):
    path = tmp_path / "plan.json"
    results = Results(path, "quick", {}, False)
    for versions in ({"numpy": "2.0"}, {"torch": "2.1"}):
        results.add(LAUNCHES[0] | {"versions": versions})
    assert json.loads(path.read_text())["versions"] == {"numpy": "2.0", "torch": "2.1"}


def test_an_error_is_kept_as_the_line_that_says_what_went_wrong(tmp_path):
    path = tmp_path / "plan.json"
    error = "a rank failed\nTraceback\n  x\nValueError: no PerReplica here"
    Results(path, "quick", {}, False).add(LAUNCHES[0] | {"error": error})
    (run,) = json.loads(path.read_text())["runs"]
    assert run["error"] == "ValueError: no PerReplica here"
