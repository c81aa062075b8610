"""The benchmark of epochs' ends measures all systems and writes its table."""

import json

import pytest

from benchmarks import epoch_ends
from benchmarks.epoch_ends_cell import SYSTEMS
from tests.benchmarks.running import run


@pytest.mark.full
def test_all_systems_are_measured(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- epoch_ends:begin -->\n<!-- epoch_ends:end -->\nafter\n")
    given = ["--rounds", "1", "--epochs", "3", "--steps", "5"]
    printed = run("epoch_ends", *given, "--json", str(result), "--update", str(page))
    measured = json.loads(result.read_text())
    assert list(measured) == list(SYSTEMS)
    for launches in measured.values():
        (launch,) = launches
        assert len(launch["pauses"]) == 2, "the first epoch does not count"
        assert 0 < sum(launch["pauses"]) < launch["seconds"]
    assert all(SYSTEMS[name].title in printed for name in SYSTEMS)
    assert printed.strip() in page.read_text()


def test_pauses_of_all_launches_are_counted(capsys):
    launches = [{"pauses": [0.2, 0.05], "seconds": 1.0}, {"pauses": [0.3, 0.45], "seconds": 4.0}]
    arguments = type("Arguments", (), {"epochs": 3, "steps": 5, "rounds": 2})
    (row,) = [
        line
        for line in epoch_ends.table({"keras": launches}, arguments).splitlines()
        if "Keras, one device" in line
    ]
    assert [text.strip() for text in row.split("|")[2:-1]] == ["3 of 4", "0.45", "20%", "2.5"]
