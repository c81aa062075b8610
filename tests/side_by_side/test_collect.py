"""Results of hosts of one's own: the ranks' places, and runs made of what they wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.side_by_side import collect, recording, report
from benchmarks.side_by_side.runs import groups


def write(folder: Path, system: str, seconds: list[float], **more) -> Path:
    """What the ranks of a launch wrote, who took so many seconds per step."""
    folder.mkdir()
    for rank, own in enumerate(seconds):
        phase = {"seconds": [own, own], "bytes": 4e6}
        place = {"work": "mlp", "batch": 64, "rank": rank, "ranks": len(seconds)}
        found = {"versions": {}, "parameters": 1_000_000, "losses": [1.0], "peak_bytes": 5}
        content = {"system": system, "interface": "eth0", **place, **found, "phases": [phase]}
        (folder / f"{rank}.json").write_text(json.dumps(content | more))
    return folder


def test_launches_become_rounds_and_the_slowest_rank_counts(tmp_path):
    folders = [write(tmp_path / "a", "ddp", [0.1, 0.2]), write(tmp_path / "b", "ddp", [0.4, 0.3])]
    runs = collect.collected([collect.ranks(folder) for folder in folders], "1gbit")
    assert [run["round"] for run in runs] == [0, 1]
    (group,) = groups(runs)
    assert (group.hosts, group.rates) == (2, ["1gbit"])
    assert group.seconds("ddp", "1gbit") == [0.2, 0.2, 0.4, 0.4]


def test_one_device_is_compared_on_each_number_of_hosts(tmp_path):
    folders = [write(tmp_path / "alone", "torch", [0.1]), write(tmp_path / "two", "ddp", [0.2] * 2)]
    folders.append(write(tmp_path / "three", "ddp", [0.3] * 3))
    runs = collect.collected([collect.ranks(folder) for folder in folders], "1gbit")
    assert [(run["system"], run["hosts"], run["round"]) for run in runs[:2]] == [
        ("torch", 2, 0),
        ("torch", 3, 0),
    ]
    page = report.page(collect.content(runs), None)
    assert "| 50 % | 33 % |" in page
    assert "Each host has a core of its own" in page


def test_over_loopback_the_interface_counts_all_ranks(tmp_path):
    folder = write(tmp_path / "a", "ddp", [0.1, 0.1], interface="lo")
    (run,) = collect.collected([collect.ranks(folder)], "1gbit")
    assert run["phases"][0]["bytes"] == 2e6 and run["loopback"]
    assert run["phases"][0]["rate"] == "unlimited"


def test_a_missing_rank_is_noticed(tmp_path):
    folder = write(tmp_path / "a", "ddp", [0.1, 0.1])
    (folder / "1.json").unlink()
    with pytest.raises(SystemExit, match="2 ranks; received: 1"):
        collect.ranks(folder)


def test_ranks_of_several_launches_are_noticed(tmp_path):
    folder = write(tmp_path / "a", "ddp", [0.1, 0.1])
    other = write(tmp_path / "b", "ddp-fp16", [0.1, 0.1])
    (other / "1.json").replace(folder / "1.json")
    with pytest.raises(SystemExit, match="several launches"):
        collect.ranks(folder)


CONFIG = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}}


@pytest.mark.parametrize(
    "variables, place",
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"TF_CONFIG": json.dumps(CONFIG | {"task": {"type": "chief", "index": 0}})}, (0, 3)),
        ({"TF_CONFIG": json.dumps(CONFIG | {"task": {"type": "worker", "index": 1}})}, (2, 3)),
    ],
)
def test_each_launcher_gives_a_place(variables, place):
    assert recording.own_place(variables) == place
