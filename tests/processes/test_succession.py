"""The next rank 0 of an elastic job goes on with the files of the one before."""

import json

import keras
import pytest

from tests.processes.test_backups import METADATA, WEIGHTS, read, write
from tfdist.processes.backups import BackupFolder
from tfdist.processes.files import CallbackFiles
from tfdist.processes.succession import Succession


@pytest.fixture
def folder(tmp_path):
    """The folder of rank 0, with the backup of an epoch."""
    folder = BackupFolder(tmp_path / "backup")
    write(folder.staging, 1)
    folder.commit()
    return folder


@pytest.fixture
def succeed(tmp_path, folder):
    """Makes another rank, which has written aside, rank 0; returns its callbacks."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    callback = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    callback.set_model(model)
    files = CallbackFiles([callback], is_chief=False)
    return lambda: Succession([callback], [], files).happen({}, model, epoch=2)[1]


def test_half_a_backup_never_becomes_visible(folder, succeed, tmp_path):
    write(folder.staging, 2)
    (folder.staging / METADATA).unlink()  # rank 0 was killed before it wrote that
    backup, commit = succeed()
    commit.on_train_batch_end(0)
    assert read(tmp_path / "backup") == 1
    backup.on_epoch_end(2)
    commit.on_epoch_end(2)
    assert json.loads((tmp_path / "backup" / METADATA).read_text())["epoch"] == 3
    BackupFolder(tmp_path / "backup").recover()
    assert (tmp_path / "backup" / WEIGHTS).exists()


def test_a_whole_backup_becomes_visible(folder, succeed, tmp_path, monkeypatch):
    write(folder.staging, 2)
    with monkeypatch.context() as patch:
        patch.setattr(BackupFolder, "_publish", lambda self: None)  # rank 0 was killed before it
        folder.commit()
    _, commit = succeed()
    assert read(tmp_path / "backup") == 2
    commit.on_train_batch_end(0)
    assert read(tmp_path / "backup") == 2
