"""The benchmarks of watching and of `tfdist test` run, and show what they measure."""

import argparse
import json

import pytest

import tfdist
from benchmarks import cluster_check, watching, watching_ranks
from tests.benchmarks.running import between, run
from tests.devices import DEVICES


def test_ranks_train_with_and_without_a_report(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- watching:begin -->\n<!-- watching:end -->\nafter\n")
    given = ["--strategies", "multi_worker", "--ranks", "2", "--rounds", "2", "--steps", "3"]
    printed = run("watching", *given, "--json", str(result), "--update", str(page))
    ((strategy, ranks, found),) = json.loads(result.read_text())
    assert (strategy, ranks) == ("multi_worker", 2)
    for times in found["steps"].values():
        assert len(times) == 2 and min(times) > 0
    assert set(found["steps"]) == set(found["epoch_ends"]) == {"fit", "watched"}
    options = "--strategies multi_worker --ranks 2 --rounds 2 --steps 3"
    assert f"Made by `python -m benchmarks.watching {options} --update`." in printed
    assert printed == between(page, "watching")


def test_only_watched_steps_have_clocks(tmp_path, monkeypatch):
    monkeypatch.setattr(watching_ranks, "WARM_UP_CALLS", 1)
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    cell = argparse.Namespace(variables=2, optimizer="sgd", steps_per_execution=1, dynamic=False)
    fits = watching_ranks.warmed_up(strategy, cell, str(tmp_path))
    # A step with clocks adds itself to these sums.
    noted = [strategy.parts.read().steps]
    for name in ("fit", "watched"):
        fits[name]()
        noted.append(strategy.parts.read().steps)
    assert noted == [1, 1, 2]


def test_what_watching_adds_is_the_difference():
    ends = {"fit": [0.001, 0.002, 0.003], "watched": [0.011, 0.012, 0.013]}
    steps = {"fit": [0.010, 0.012], "watched": [0.0104, 0.0132]}
    cells = watching.row("horovod", 4, {"steps": steps, "epoch_ends": ends})
    assert cells[:3] == ["`horovod`", "4", "11.00 ms"]
    assert cells[3:] == ["800 (400–1200) µs", "4.00 (2.00–6.00) %", "10.0 ms"]


@pytest.mark.full
def test_the_cluster_is_tested_and_timed(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- cluster_check:begin -->\n<!-- cluster_check:end -->\nafter\n")
    given = ["--strategies", "multi_worker", "--ranks", "2", "--rounds", "1"]
    printed = run("cluster_check", *given, "--json", str(result), "--update", str(page))
    ((strategy, ranks, (job,)),) = json.loads(result.read_text())
    assert (strategy, ranks) == ("multi_worker", 2)
    assert job["seconds"] > 0 and isinstance(job["problems"], list)
    options = "--strategies multi_worker --ranks 2 --rounds 1"
    assert f"Made by `python -m benchmarks.cluster_check {options} --update`." in printed
    assert printed == between(page, "cluster_check")


def test_problems_of_all_jobs_are_counted():
    found = ((30, []), (40, ["a link"]), (50, ["a link", "a rank"]))
    jobs = [{"seconds": seconds, "problems": problems} for seconds, problems in found]
    cells = cluster_check.row("horovod", 4, jobs)
    assert cells == ["`horovod`", "4", "40 s", "50 s", "3"]
