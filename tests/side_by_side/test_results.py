"""The file of results: it is whole after each launch, and measuring goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common import machine
from benchmarks.side_by_side.report import machine_text
from benchmarks.side_by_side.results import Results

PLACE = {"round": 0, "system": "ddp", "work": "mlp", "hosts": 2, "batch": 64}
STEPS = {"1gbit": 10}


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = tmp_path / "results" / "plan.json"
    Results(path, "quick", STEPS, False).add(PLACE | {"phases": []})
    resumed = Results(path, "quick", STEPS, True)
    assert not resumed.needs(PLACE)
    others = {"round": 1, "system": "keras", "work": "cnn", "hosts": 3, "batch": 32}
    assert all(resumed.needs(PLACE | {key: value}) for key, value in others.items())
    resumed.add(PLACE | {"round": 1})
    assert [run["round"] for run in json.loads(path.read_text())["runs"]] == [0, 1]


def test_without_resume_measuring_begins_anew(tmp_path):
    Results(tmp_path / "plan.json", "quick", STEPS, False).add(PLACE)
    assert Results(tmp_path / "plan.json", "quick", STEPS, False).needs(PLACE)


def test_a_system_that_failed_is_not_tried_again(tmp_path):
    results = Results(tmp_path / "plan.json", "quick", STEPS, True)
    results.add(PLACE | {"error": "a rank failed"})
    assert not results.needs(PLACE | {"round": 1})
    assert results.needs(PLACE | {"round": 1, "hosts": 3})


def test_results_of_other_steps_are_not_continued(tmp_path):
    Results(tmp_path / "plan.json", "quick", STEPS, False).add(PLACE)
    with pytest.raises(SystemExit, match="another plan.*'1gbit': 10"):
        Results(tmp_path / "plan.json", "quick", {"1gbit": 5}, True)


def test_results_of_another_machine_are_not_continued(tmp_path):
    path = tmp_path / "plan.json"
    Results(path, "quick", STEPS, False).add(PLACE)
    content = json.loads(path.read_text())
    content["machine"]["cores"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="another plan or machine"):
        Results(path, "quick", STEPS, True)


def test_the_machine_is_told_from_others_of_the_same_name():
    found = machine.facts()
    assert found["vectors"] in Path("/proc/cpuinfo").read_text().split()
    text = machine_text({"machine": found, "versions": {}, "runs": []})
    assert f"{found['processor']} ({found['vectors']}), Linux" in text
