"""The benchmark of stragglers: what is concluded from runs, and that it runs."""

from __future__ import annotations

import json

import pytest

from benchmarks import async_stragglers_report
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
        made_up_run("stragglers", "none", 1.0, reaching),
        made_up_run("stragglers", "none", 1.0, missing, seed=1),
        made_up_run("stragglers", "Bounded(8)", 1.0, reaching, updates=16, drops=5),
        made_up_run("stragglers", "synchronous", 4.0, missing, parts=2),
        made_up_run("divergence", "none", 1.0, [(8, 1.0, 0.1), (21, 1.0, 1.1)], workers=8),
        made_up_run("divergence", "none", 1.0, [(21, 1.0, 0.9)], seed=1, workers=8),
    ]
    text = async_stragglers_report.text(runs, [0.1, 0.1, 0.5])
    assert "the sum of all is 22.0." in text
    none, learnt = cells(text, "none") + cells(text, "digits")
    assert none[:4] == ["20.0", "20.0", "0.91", "2.00"]
    assert none[6:] == ["16", "3.0 (1 of 2)"]
    assert cells(text, "Bounded(8)")[0][:6] == ["15.0", "15.0", "0.68", "1.50", "0.0", "24 %"]
    assert cells(text, "synchronous")[0] == [
        *("5.0", "10.0", "0.45", "1.00", "0.0", "0 %", "never", "never"),
    ]
    assert learnt == ["0.5", "8", "none", "0.0", "20", "1 of 2", "1.1, 0.9"]


@pytest.mark.full
def test_async_stragglers_runs_all_three_kinds_of_jobs(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- stragglers:begin -->\n<!-- stragglers:end -->\nafter\n")
    options = ["--quick", "--tasks", "linear", "--policies", "none", "synchronous, multi_worker"]
    options += ["--plot", str(tmp_path), "--json", str(result), "--update", str(page)]
    printed = run("async_stragglers", *options)
    runs = json.loads(result.read_text())
    kinds = [(one["kind"], one["policy"]) for one in runs]
    assert kinds == [
        ("alone", "none"),
        ("alone", "none"),
        ("stragglers", "none"),
        ("stragglers", "synchronous, multi_worker"),
        ("divergence", "none"),
        ("divergence", "none"),
        ("divergence", "InverseLR()"),
    ]
    stale = [one["mean_staleness"] > 0 for one in runs]
    assert stale == [False, False, True, False, False, True, True]
    # The parts of a global batch train like the whole, whoever is slow.
    assert runs[3]["curve"][-1][2] < 0.5 * runs[3]["start_loss"]
    for name in ("async_stragglers.png", "async_divergence.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert printed.endswith(between(page, "stragglers"))
