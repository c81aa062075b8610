"""Parameter servers are killed: training goes back to a snapshot, and says what was lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parameter_server.counting import BATCHES, SAMPLES
from tests.parameter_server.dying import EPOCHS, TESTED, rate_of

ROOT = Path(__file__).parents[2]
ALL = EPOCHS * BATCHES


def run(folder, scenario, ps):
    command = [sys.executable, "-m", "tfdist", "run", "-n", "3", "--ps", str(ps), "-m"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [*command, "tests.parameter_server.dying", str(folder), scenario],
        env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = finished.stdout + finished.stderr
    assert finished.returncode == 0, said[-5000:]
    facts = json.loads((folder / "facts").read_text())
    assert facts["updates"] == ALL  # the lost ones too: each step of an epoch is counted once
    assert facts["iterations"] == ALL - facts["lost"]
    assert sum(facts["history"]["lost_updates"]) == facts["lost"]
    for version, lost, variables, equal in facts["restored"]:
        assert variables > 5 and equal, (version, lost)
    assert said.count("it is started again") == len(facts["killed"])
    for version, lost, *_ in facts["restored"]:
        assert f"is back; training goes on from the snapshot of update {version}; " in said
        assert all(f"tfdist: ps {number} (" in said for number in lost)
    return facts, said


@pytest.mark.full
def test_no_update_is_in_the_weights_by_half_and_lost_ones_are_counted(tmp_path):
    """The workers make the updates themselves, so the chief learns of them later."""
    facts, _ = run(tmp_path, "counts", ps=1)
    assert facts["why_chief"] is None
    (first, *_), (second, *_) = facts["restored"]
    assert first == 0  # only the snapshot of the beginning was there
    assert 15 <= second <= facts["killed"][1] + BATCHES
    seen = facts["facts"]["seen"]
    assert sum(seen) + facts["lost"] * (SAMPLES // BATCHES) == EPOCHS * SAMPLES
    assert facts["facts"]["updates"] == facts["facts"]["iterations"] == ALL - facts["lost"]
    assert facts["lost"] >= 5
    counted = facts["history"]["counted"]
    # The metrics of an epoch count what is left of it.
    assert counted[3] == SAMPLES and sum(counted) >= sum(seen)


@pytest.mark.full
def test_updates_of_the_snapshot_that_the_chief_did_not_know_of_are_counted(tmp_path):
    facts, _ = run(tmp_path, "ahead", ps=1)
    assert facts["why_chief"] is None
    ((version, *_),) = facts["restored"]
    (known,) = facts["killed"]
    assert version > known
    seen = facts["facts"]["seen"]
    assert sum(seen) + facts["lost"] * (SAMPLES // BATCHES) == EPOCHS * SAMPLES
    assert max(seen) == EPOCHS
    assert facts["facts"]["updates"] == facts["facts"]["iterations"] == ALL - facts["lost"]


@pytest.mark.full
def test_a_server_that_answers_again_when_the_chief_looks_was_lost(tmp_path):
    facts, _ = run(tmp_path, "answers_again", ps=1)
    assert [lost for _, lost, *_ in facts["restored"]] == [[0], [0]]


@pytest.mark.full
def test_a_worker_that_is_lost_too_is_left_out(tmp_path):
    facts, said = run(tmp_path, "with_a_worker", ps=1)
    assert "rank 1 was killed by SIGKILL" in said and "training goes on without it" in said
    (restored,) = facts["restored"]
    assert facts["lost"] == facts["killed"][0] - restored[0]
    seen = facts["facts"]["seen"]
    assert sum(seen) + facts["lost"] * (SAMPLES // BATCHES) == EPOCHS * SAMPLES
    assert set(facts["facts"]["workers"][-BATCHES:]) == {1}


@pytest.fixture(scope="module")
def adam(tmp_path_factory):
    return run(tmp_path_factory.mktemp("adam"), "adam", ps=2)


@pytest.mark.full
@pytest.mark.xdist_group("dying-adam")
def test_all_servers_go_back_to_one_update_whenever_one_dies(adam):
    facts, said = adam
    first, second, third = facts["killed"]
    versions = [version for version, *_ in facts["restored"]]
    assert first == BATCHES + 5
    assert versions[0] == 22  # 0, 11 and 22 were taken by then
    assert second == 3 * BATCHES - (first - versions[0])
    assert versions[1:] == [second - (second - versions[0]) % 11, third]
    lost = [first - versions[0], second - versions[1]]
    assert f"{lost[0]} updates are lost" in said and f"{lost[1]} updates are lost" in said
    assert [servers for _, servers, *_ in facts["restored"]] == [[0], [1], [0]]
    # The third died while a snapshot was taken: of the update after which that was due.
    assert facts["lost"] == sum(lost) + 11


@pytest.mark.full
@pytest.mark.xdist_group("dying-adam")
def test_epochs_logs_and_the_learning_rate_are_those_of_the_epoch(adam):
    facts, _ = adam
    assert {len(values) for values in facts["history"].values()} == {EPOCHS}
    assert facts["rate"] == pytest.approx(rate_of(1))
    # The evaluation in which a server died was begun anew.
    assert facts["tested"] > EPOCHS * (8 * BATCHES // TESTED)
    assert facts["history"]["val_accuracy"][-1] == pytest.approx(facts["accuracy"])


@pytest.mark.full
@pytest.mark.xdist_group("dying-adam")
def test_the_model_can_be_used_and_saved_afterwards_and_no_snapshot_is_left(adam):
    facts, _ = adam
    assert facts["saved"] <= 1e-6 and facts["on_batch"] <= 1e-6
    assert facts["left"] == []
    count, size, seconds = facts["cost"]
    assert count == len(facts["taken"]) and size > 1000 * count and seconds > 0
