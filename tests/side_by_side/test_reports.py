"""The comparison with peers: what is concluded from runs, and that it runs."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.side_by_side import (
    goals,
    launch,
    plans,
    recording,
    report,
    rig,
    systems,
    targets,
    work,
)
from benchmarks.side_by_side.runs import groups
from tests.side_by_side import reading
from tests.traffic import network

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = 1_000_000


def run_of(system: str, milliseconds: float, number: int = 0, sent: float = 4e6, **more):
    phases = [
        {"rate": r, "links": [1.2e8] * 2, "seconds": [milliseconds / 1e3] * 3, "bytes": sent}
        for r in ("unlimited", "1gbit", "100mbit")
    ]
    common = {"work": "mlp", "hosts": 2, "batch": 64, "loopback": "", "round": number}
    found = {"phases": phases, "losses": [0.5], "peak_bytes": 1, "parameters": PARAMETERS}
    return {"system": system, **common, **found, **more}


def test_the_ring_share_is_the_bound_by_what_the_exchange_adds():
    (group,) = groups([run_of("horovod", 50), run_of("tf-keras", 10)])
    # 4 MB at 125 MB/s take 32 ms; 40 are added.
    assert group.ring_share("horovod", "1gbit") == pytest.approx(0.8)


def test_an_exchange_without_training_is_all_that_its_step_adds():
    (group,) = groups([run_of("horovod-alone", 40), run_of("tf-keras", 10)])
    assert group.ring_share("horovod-alone", "1gbit") == pytest.approx(0.8)
    (row,) = [row for row in report.times(group) if "alone" in row]
    assert row.endswith("| 40 (40–40) | – |")


def test_compressed_systems_have_no_ring_share():
    (group,) = groups([run_of("horovod-fp16", 50, sent=2e6), run_of("tf-keras", 10)])
    assert group.ring_share("horovod-fp16", "1gbit") is None


def test_a_step_that_is_faster_than_one_device_has_no_ring_share():
    (group,) = groups([run_of("horovod", 50), run_of("tf-keras", 60)])
    assert group.ring_share("horovod", "1gbit") is None


def test_a_ratio_is_of_the_same_round():
    slow = [run_of("horovod", 100, 0), run_of("tfdist-horovod", 50, 0)]
    fast = [run_of("horovod", 10, 1), run_of("tfdist-horovod", 10, 1)]
    (group,) = groups(slow + fast)
    assert group.ratio("tfdist-horovod", "horovod", "1gbit") == pytest.approx([0.5, 1.0])


def test_systems_that_ran_in_fewer_rounds_are_named():
    runs = [run_of("tfdist-horovod", 50), run_of("tfdist-horovod", 50, 1), run_of("ddp", 40)]
    runs.append(run_of("mwms-keras3", 0, error="ValueError: no"))
    assert report.rounds(groups(runs)[0]) == "2 rounds (1 with: PyTorch DDP)"
    assert report.rounds(groups([run_of("ddp", 40)])[0]) == "1 round"


def test_goals_name_the_best_of_ours_and_say_whether_it_reaches_them():
    runs = [run_of("horovod", 1000), run_of("tfdist-horovod", 900)]
    runs += [run_of("tfdist-horovod-topk", 300), run_of("tfdist-horovod-powersgd", 40)]
    rows = goals.table(groups(runs)[0])
    assert any("powersgd" in row and "0.040" in row and "| yes |" in row for row in rows)
    assert not any("topk" in row for row in rows)


def test_shares_of_the_ring_bound_are_goals_of_both_backends():
    # 4 MB take 32 ms at 1 Gbit/s.
    runs = [run_of("keras", 10), run_of("tfdist-horovod", 46), run_of("tfdist-multi_worker", 49)]
    rows = goals.ring_table(groups(runs)[0])
    (own,) = [row for row in rows if "horovod" in row and "1 Gbit/s" in row]
    (other,) = [row for row in rows if "multi_worker" in row and "1 Gbit/s" in row]
    assert "88.9 % | no |" in own and "82.1 % | yes |" in other


def test_steps_to_a_loss_are_counted_on_smoothed_losses():
    losses = [1.0] * 20 + [0.0] * 20
    (group,) = groups([run_of("ddp", 1, losses=losses)])
    assert group.steps_to("ddp", 0.5) == 25
    assert group.steps_to("ddp", -1.0) is None


def test_the_page_shows_a_crash_as_one():
    failed = run_of("mwms-keras3", 1) | {"error": "ValueError: no PerReplica here"}
    (group,) = groups([run_of("mwms", 50), failed])
    assert any(
        "crashes: `ValueError: no PerReplica here`" in line for line in report.section(group)
    )


def test_an_error_that_shows_an_array_is_found_before_it():
    rows = "       [[-1.5e+00, 2.,  ...,\n        [3, 4]]],\n\n" * 1000
    said = launch.last_words(f"Traceback\nValueError: a value {{\n{rows}}}) of PerReplica")
    assert launch.reason(said) == "ValueError: a value {"
    assert said.endswith("of PerReplica")


def test_the_time_to_a_loss_is_steps_by_the_step_on_each_link():
    runs = [run_of("ddp", 200, work="digits", losses=[1.0] * 20 + [0.0] * 20)]
    runs += [run_of("horovod", 200, work="digits", losses=[1.0] * 40)]
    rows = targets.table(groups(runs)[0])
    # The target is 0.1, which a mean of ten reaches after 20 + 9 steps.
    assert any("PyTorch" in row and "| 29 | 5.8 | 5.8 | 5.8 |" in row for row in rows)
    assert any("Horovod" in row and "not reached" in row for row in rows)


def test_compressed_steps_to_a_loss_are_compared_with_dense_ones_of_the_same_strategy():
    def after(system: str, steps: int):
        return run_of(system, 1, work="digits", losses=[1.0] * steps + [0.0] * (60 - steps))

    runs = [after("tfdist-horovod", 20), after("tfdist-horovod-powersgd", 22)]
    runs += [after("tfdist-horovod-topk", 30), after("tfdist-horovod-signsgd", 60)]
    runs += [after("tfdist-multi_worker-topk", 20)]
    rows = targets.goals(groups(runs)[0])
    assert any("powersgd" in row and "1.07 | yes |" in row for row in rows)
    assert any("topk" in row and "1.34 | no |" in row for row in rows)
    assert any("signsgd" in row and "not reached | no |" in row for row in rows)
    assert not any("multi_worker" in row for row in rows)


def test_ranks_share_each_global_batch():
    task = work.WORKS["mlp"]
    x, _ = task.samples(8)
    first, second = (task.share(4, rank, 2)[0] for rank in range(2))
    assert (x[:4] == first[:4]).all() and (x[4:8] == second[:4]).all()
    assert (x[8:12] == first[4:8]).all()


def test_plans_name_systems_and_works_that_exist():
    for plan in plans.PLANS.values():
        for cell in plan.cells:
            assert cell.work in work.WORKS
            assert set(cell.slow) <= set(cell.systems) <= set(systems.SYSTEMS)


def test_a_recorder_times_the_steps_of_each_phase_and_counts_their_bytes(tmp_path):
    arguments = argparse.Namespace(
        folder=tmp_path,
        system="ddp",
        work="mlp",
        batch=64,
        rank=0,
        ranks=1,
        interface="lo",
        phases=[3, 2],
        together=False,
    )
    recorder = recording.Recorder(arguments, {}, PARAMETERS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(recorder.steps):
            sender.sendto(bytes(5000), ("127.0.0.1", 9))
            recorder.step_done(1.0)
    found = json.loads((tmp_path / "0.json").read_text())
    assert [len(phase["seconds"]) for phase in found["phases"]] == [3, 2]
    assert len(found["losses"]) == recorder.steps
    assert all(phase["bytes"] > 5000 for phase in found["phases"])


@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_namespaces_of_killed_processes_are_removed():
    killed = subprocess.Popen(["true"])
    killed.wait()
    name = f"tfdist-{killed.pid}-0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with network.hosts(1):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert name not in listed


def test_a_link_fits_when_it_carries_what_its_rate_leaves_for_data():
    assert rig.fits(119e6, "1gbit") and not rig.fits(100e6, "1gbit")
    assert not rig.fits(130e6, "1gbit") and rig.fits(900e6, "10gbit")
    assert rig.fits(3e9, rig.UNLIMITED)


@pytest.mark.full
@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_links_of_another_speed_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rig, "CHECKS", 2)
    with rig.rig(2) as made:
        made.limit("100mbit")
        with pytest.raises(RuntimeError, match="1 Gbit/s must carry 0.85 to 1.02.*Received: 1"):
            made.checked("1gbit", tmp_path)
        assert len(made.checked("100mbit", tmp_path)) == 2


@pytest.mark.full
def test_tfdist_and_keras_are_measured_on_links(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.side_by_side", "quick", "--out", str(out)]
    command += ["--systems", "tfdist-multi_worker", "keras", "--rates", "unlimited", "1gbit"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "--rounds", "1"], cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0
    runs = json.loads(out.read_text())["runs"]
    assert [run["system"] for run in runs] == ["tfdist-multi_worker", "keras"]
    assert all(phase["seconds"] for run in runs for phase in run["phases"])
    assert reading.unread(out) == []
    assert out.with_suffix(".md").exists() and out.with_suffix(".png").exists()
