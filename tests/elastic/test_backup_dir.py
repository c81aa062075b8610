"""A job that has too few ranks keeps its state, and the next one goes on from it."""

import pickle

import pytest

from tests.elastic.test_faults import ENGINES, check, launch, train
from tests.elastic.test_faults import one_device as one_device  # a fixture

# The state is kept in the middle of an accumulation.
LOSSES = {
    "the first rank is left": (["1:SIGKILL:step 3", "2:SIGKILL:micro 8"], 8),
    "another one is left": (["0:SIGKILL:step 3", "1:SIGKILL:micro 8"], 8),
    "all leave but one": (["0:SIGTERM:step 6", "1:SIGTERM:evaluate"], 10),
}


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LOSSES)
def test_the_next_job_goes_on_and_comes_to_the_result_of_one_device(
    name, engine, tmp_path, one_device
):
    kept = tmp_path / "kept"
    options = ("--backup-dir", str(kept))
    losses, steps = LOSSES[name]
    done = train(tmp_path, engine, *losses, least=2, options=options)
    assert done.returncode == 75, done.stderr
    assert f"it goes on from its state in {kept}/elastic.backup" in done.stderr
    assert not list(tmp_path.glob("rank-*.pickle"))
    done = train(tmp_path, engine, count=2, least=1, options=options)
    assert done.returncode == 0, done.stderr
    assert "going on from the state of 20" in done.stderr
    assert list(kept.iterdir()) == [], "the next job begins anew"
    check(tmp_path, [0, 1], one_device())
    assert trained(tmp_path, 0) == 15 - steps
    assert trained(tmp_path, 1) <= 15 - steps, "it may join a little later"


def trained(folder, number):
    """How many steps a rank has trained, and not followed."""
    return len(pickle.loads((folder / f"rank-{number}.pickle").read_bytes())["times"])


@pytest.mark.full
def test_the_next_job_may_lose_ranks_too(tmp_path, one_device):
    options = ("--backup-dir", str(tmp_path / "kept"))
    for moment in ("step 3", "step 9"):
        done = train(tmp_path, "multi_worker", f"1:SIGKILL:{moment}", least=3, options=options)
        assert done.returncode == 75, done.stderr
    done = train(tmp_path, "multi_worker", least=3, options=options)
    assert done.returncode == 0, done.stderr
    check(tmp_path, [0, 1, 2], one_device())


@pytest.mark.full
def test_a_script_that_does_something_else_is_refused(tmp_path):
    options = ("--backup-dir", str(tmp_path / "kept"))
    lost = ("1:SIGKILL:step 3",)
    done = train(tmp_path, "multi_worker", *lost, count=2, least=2, options=options)
    assert done.returncode == 75
    done = train(tmp_path, "multi_worker", count=2, least=2, options=options, SEED="1")
    assert done.returncode == 1
    assert "The script is not where it was when its state was kept (--backup-dir)" in done.stderr
    assert "Received: other targets, inputs" in done.stderr
    assert (tmp_path / "kept" / "elastic.backup").exists()


@pytest.mark.full
def test_a_state_that_cannot_be_kept_is_said(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "elastic.part").mkdir()
    options = ("--backup-dir", str(tmp_path / "kept"))
    lost = ("1:SIGKILL:step 3",)
    done = train(tmp_path, "multi_worker", *lost, count=2, least=2, options=options)
    assert done.returncode == 75
    assert "its state could not be kept (IsADirectoryError: [Errno 21]" in done.stderr
    assert "with BackupAndRestore it goes on from the last backup" in done.stderr


@pytest.mark.full
def test_a_job_that_is_lost_after_it_went_on_does_so_again(tmp_path, one_device):
    kept = ("--backup-dir", str(tmp_path / "kept"))
    done = train(tmp_path, "multi_worker", "1:SIGKILL:step 3", count=2, least=2, options=kept)
    assert done.returncode == 75, done.stderr
    ended = "0:launcher SIGKILL:epoch 2"
    done = train(tmp_path, "multi_worker", ended, count=2, least=1, options=kept)
    assert done.returncode == -9, "nothing could be kept"
    done = train(tmp_path, "multi_worker", count=2, least=1, options=kept)
    assert done.returncode == 0, done.stderr
    check(tmp_path, [0, 1], one_device())
    assert trained(tmp_path, 0) == 15 - 3


@pytest.mark.full
def test_a_job_that_does_not_come_to_the_state_leaves_it(tmp_path):
    kept = ("--backup-dir", str(tmp_path / "kept"))
    done = train(tmp_path, "multi_worker", "1:SIGKILL:step 3", count=2, least=2, options=kept)
    assert done.returncode == 75, done.stderr
    script = tmp_path / "script.py"
    lines = ["import keras, tfdist", "keras.utils.set_random_seed(1)"]
    lines += ["tfdist.Strategy(accumulation_steps=2)"]  # as the job, which does more
    script.write_text("\n".join(lines))
    done = launch(tmp_path, "tfdist", "run", "-n", "2", "--min", "2", *kept, str(script))
    assert done.returncode == 0, done.stderr
    assert "was not used, and stays" in done.stderr
    assert (tmp_path / "kept" / "elastic.backup").exists()


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "elastic.backup").write_text("something else")
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('started')")
    kept = ("--backup-dir", str(tmp_path / "kept"))
    done = launch(tmp_path, "tfdist", "run", "-n", "2", "--min", "2", *kept, str(script))
    assert done.returncode == 2
    assert "The file is no state of an elastic job (--backup-dir)" in done.stderr
    assert "started" not in done.stderr
