"""The benchmark of stragglers: what is concluded from runs, and that it runs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import (
    async_stragglers,
    async_stragglers_ranks,
    async_stragglers_report,
    simulation,
)
from tests.benchmarks.running import between, run


def made_up_run(kind, policy, seconds, curve, **changes):
    """A run of 21 batches of one gradient, as `async_stragglers_ranks.py` tells of it."""
    run = {"kind": kind, "policy": policy, "task": "digits", "seed": 0, "parts": 1, "drops": 0}
    run |= {"updates": 21, "seconds": seconds, "mean_staleness": 0.0, "learning_rate": 0.5}
    return run | {"start_loss": 2.0, "target": 0.5, "curve": curve} | changes


def cells(text: str, beginning: str) -> list[list[str]]:
    """The cells of the table rows that begin so, after the first."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [row[1:] for row in rows if row[0] == beginning]


def test_async_stragglers_compares_gradients_that_were_applied():
    reaching, missing = [(8, 1.0, 0.9), (16, 3.0, 0.4), (21, 4.0, 0.1)], [(21, 4.0, 0.6)]
    runs = [
        made_up_run("alone", "none", 2.0, [], delay=0.1),  # 10 per second
        made_up_run("alone", "none", 10.0, [], delay=0.5),  # 2 per second
        made_up_run("equal", "none", 2.5, []),  # 8 per second
        made_up_run("equal", "synchronous", 4.0, [], parts=2),  # 5, of two gradients each
        made_up_run("stragglers", "none", 1.0, reaching),
        made_up_run("stragglers", "none", 1.0, missing, seed=1),
        made_up_run("stragglers", "Bounded(8)", 1.0, reaching, updates=16, drops=5),
        made_up_run("stragglers", "synchronous", 4.0, missing, parts=2),
        made_up_run("divergence", "none", 1.0, [(8, 1.0, 0.1), (21, 1.0, 1.1)], workers=8),
        made_up_run("divergence", "none", 1.0, [(21, 1.0, 0.9)], seed=1, workers=8),
    ]
    text = async_stragglers_report.text("stragglers", runs, [0.1, 0.1, 0.5])
    assert "the sum of all is 22.0. Together, with 100 ms each, in gradients/s: none 8.0; " in text
    assert "; synchronous 10.0.\n" in text
    (none,) = cells(text, "none")
    assert none[:4] == ["20.0", "20.0", "0.91", "2.00"]
    assert none[6:] == ["21", "16", "3.0 (1 of 2)"]
    assert cells(text, "Bounded(8)")[0][:6] == ["15.0", "15.0", "0.68", "1.50", "0.0", "24 %"]
    assert cells(text, "synchronous")[0] == [
        *("5.0", "10.0", "0.45", "1.00", "0.0", "0 %", "21", "never", "never"),
    ]
    (learnt,) = cells(async_stragglers_report.text("divergence", runs, []), "digits")
    assert learnt == ["0.5", "8", "none", "0.0", "20", "1 of 2", "1.1, 0.9"]


def test_async_stragglers_draws_curves_to_the_target():
    curve = [(8, 1.0, 0.9), (16, 2.0, 0.4), (24, 3.0, 0.6)]
    made = made_up_run("stragglers", "none", 3.0, curve)
    assert async_stragglers_report.to_target(made) == curve[:2]
    assert async_stragglers_report.to_target(made | {"target": 0.1}) == curve
    assert async_stragglers_report.reached(made | {"curve": []}) is None


@pytest.mark.parametrize(
    ("losses", "batches"), [([2, 2, 0.4, 2, 2, 2], 4), ([2, 2, 2, 2, 0.4], 5), ([2] * 6, 6)]
)
def test_async_stragglers_run_to_the_target_and_for_long_enough(losses, batches):
    class Model:
        stop_training = False

        def get_weights(self):
            return []

    looks = iter([2.0, *losses])
    task = async_stragglers_ranks.Task(np.zeros(1), np.zeros(1), (), "", lambda *_: next(looks))
    wanted = {"target": 0.5, "least": 4, "batches": 6}
    watch = async_stragglers_ranks.Watch(wanted, task, every=1)
    watch.set_model(Model())
    watch.on_train_begin()
    while not watch.model.stop_training:
        watch.on_train_batch_end(watch.batches)
    assert watch.batches == batches == len(watch.curve)


def test_async_stragglers_measures_only_the_parts_that_are_wanted(tmp_path, monkeypatch, capsys):
    jobs = []

    def run_job(engine, delays, runs):
        jobs.append((engine, delays, [run["least"] for run in runs]))
        told = {"drops": 0, "mean_staleness": 0.0, "start_loss": 1.0, "curve": [(8, 1.0, 0.5)]}
        return [run | told | {"updates": run["batches"], "seconds": 1.0} for run in runs]

    monkeypatch.setattr(async_stragglers, "run_job", run_job)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- stragglers:begin -->\n<!-- stragglers:end -->\nafter\n")
    options = ["--parts", "stragglers", "--tasks", "linear", "--seeds", "1", "--seconds", "0.1"]
    options += ["--at-least", "20", "--update", str(page), "--plot", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["async_stragglers", *options])
    async_stragglers.main()
    assert capsys.readouterr().out.endswith(between(page, "stragglers"))
    assert [path.name for path in tmp_path.glob("*.png")] == ["async_stragglers.png"]
    equal, slow = [0.1] * 4, [0.1] * 3 + [0.5]
    servers, none = "parameter_server", "multi_worker"
    assert jobs == [
        *((servers, [0.1], [0]), (servers, [0.5], [0])),
        # 40 gradients per second if none is slow: of synchronous updates a fourth.
        *((servers, equal, [800, 200]), (none, equal, [200])),
        # 32 where nobody waits for the slow one, else 8.
        *((servers, slow, [640] * 4 + [160, 160, 40]), (none, slow, [40])),
    ]


def test_what_the_company_of_others_costs_is_told(tmp_path, monkeypatch):
    runs = [
        made_up_run("alone", "none", 2.0, [], delay=0.1),
        made_up_run("alone", "none", 10.0, [], delay=0.5),
        # Two workers together: steps of 125 ms and 160 ms.
        made_up_run("equal", "none", 1.25, []),
        made_up_run("equal", "synchronous, multi_worker", 3.2, [], parts=2),
        *(made_up_run("stragglers", policy, 5.0, [(8, 1.0, 0.1)]) for policy in ("none", "SSP(3)")),
        made_up_run("stragglers", "synchronous, multi_worker", 12.0, [], parts=2),
        made_up_run("divergence", "none", 0.25, [], workers=8),
    ]
    page = tmp_path / "page.md"
    parts = ("stragglers", "divergence")
    page.write_text("\n".join(async_stragglers_report.text(p, runs, [0.1, 0.5]) for p in parts))
    monkeypatch.setattr(simulation, "MEASURED", page)
    none, ssp, synchronous = simulation.measured()
    assert none.seconds == ssp.seconds == pytest.approx((0.125, 0.525))
    assert synchronous.seconds == pytest.approx((0.16, 0.56))
    assert (none.rate, none.batches, none.chief) == (4.0, 21, 1 / 80)
    assert synchronous.simulated == pytest.approx(2 / 0.56, rel=0.01)


OPTIONS = "--quick", "--tasks", "linear", "--policies", "none", "synchronous, multi_worker"


def measured(part, folder):
    """What a run of one part of the benchmark finds and prints, and draws into the folder."""
    page, result = folder / "page.md", folder / "result.json"
    page.write_text(f"before\n<!-- {part}:begin -->\n<!-- {part}:end -->\nafter\n")
    files = "--plot", str(folder), "--json", str(result), "--update", str(page)
    printed = run("async_stragglers", *OPTIONS, "--parts", part, *files)
    assert printed.endswith(between(page, part))
    assert (folder / f"async_{part}.png").read_bytes().startswith(b"\x89PNG")
    return json.loads(result.read_text())


@pytest.mark.full
def test_async_stragglers_runs_jobs_with_and_without_a_slow_worker(tmp_path):
    runs = measured("stragglers", tmp_path)
    kinds = [(one["kind"], one["policy"]) for one in runs]
    assert kinds == [
        ("alone", "none"),
        ("alone", "none"),
        ("equal", "none"),
        ("equal", "synchronous, multi_worker"),
        ("stragglers", "none"),
        ("stragglers", "synchronous, multi_worker"),
    ]
    assert [one["mean_staleness"] > 0 for one in runs] == [False, False, True, False, True, False]
    # The parts of a global batch train like the whole, whoever is slow.
    assert runs[5]["curve"][-1][2] < 0.5 * runs[5]["start_loss"]


@pytest.mark.full
def test_async_stragglers_runs_many_workers_and_one(tmp_path):
    runs = measured("divergence", tmp_path)
    kinds = [(one["workers"], one["policy"], one["mean_staleness"] > 0) for one in runs]
    assert kinds == [(1, "none", False), (2, "none", True), (2, "InverseLR()", True)]
