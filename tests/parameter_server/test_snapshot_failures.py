"""Snapshots that cannot be written: what training does about it."""

import re
import shutil

import pytest

from tests.log_messages import log_messages
from tests.parameter_server.snapshot_scenarios import BATCHES, EPOCHS
from tfdist.parameter_server.snapshots.folder import Folder, remove

pytestmark = pytest.mark.xdist_group("parameter_server")


@pytest.mark.scenario("snapshots_fail")
def test_training_that_has_not_asked_for_snapshots_goes_on_and_says_so(found):
    facts = found["no temporary folder"]
    assert (facts["updates"], facts["snapshots"], facts["error"]) == (EPOCHS * BATCHES, 0, None)
    (said,) = facts["log"]  # not again at once
    assert said.startswith(
        "tfdist: a snapshot could not be written; training goes on, and the next attempt is in 60 "
        "s. Until then, `fit` ends if a parameter server dies. ("
    )
    assert "missing" in said


@pytest.mark.parametrize("what", ["no temporary folder, asked for", "no folder"])
@pytest.mark.scenario("snapshots_fail")
def test_training_that_has_asked_for_them_does_not_begin(found, what):
    facts = found[what]
    assert (facts["updates"], facts["snapshots"], facts["log"]) == (0, 0, [])
    assert facts["error"].startswith("The first snapshot could not be written, so `fit` could not")
    assert "Received: " in facts["error"]


@pytest.mark.scenario("snapshots_fail")
def test_training_with_an_older_snapshot_goes_on(found):
    facts = found["lost later"]
    assert (facts["updates"], facts["error"]) == (EPOCHS * BATCHES, None)
    assert 1 <= facts["snapshots"] <= 1 + BATCHES // 4
    (said,) = facts["log"]
    (last,) = re.findall(r"Until then, the last one is of update (\d+)\.", said)
    # One is taken four updates after the last one or later, as workers go on meanwhile.
    assert 4 * (facts["snapshots"] - 1) <= int(last) <= BATCHES


def test_a_temporary_folder_is_not_filled():
    folder = Folder(None)
    free = shutil.disk_usage("/tmp").free
    with pytest.raises(OSError, match="bytes of free space, and two snapshots need "):
        folder.new(free)
    folder.close()


def test_folders_are_for_the_own_user_and_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Folder(None)
    first, second = folder.new(1), folder.new(1)
    assert first != second
    (root,) = tmp_path.iterdir()
    assert root.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not root.exists()


def test_what_cannot_be_removed_is_said(tmp_path):
    with log_messages() as messages:
        remove(f"{tmp_path}/missing")
        assert messages == []
        remove("unknown://folder")
    (said,) = messages
    assert said.startswith("tfdist: unknown://folder could not be removed. (")
