"""A folder of backups goes from one whole backup to the next, wherever a process is killed."""

import itertools
import json
import os
import pathlib
import shutil

import h5py
import pytest

from tfdist.processes.backups import BackupFolder

WEIGHTS, METADATA = "latest.weights.h5", "training_metadata.json"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Nothing waits for the disk: a process is killed here, not the machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """Nothing catches it."""


class Kill:
    """The process ends before its `number`-th operation on files."""

    def __init__(self, monkeypatch, number):
        self.left = number
        for owner, name in [
            (os, "replace"),
            (os, "rename"),
            (os, "fsync"),
            (pathlib.Path, "mkdir"),
            (pathlib.Path, "unlink"),
            (pathlib.Path, "write_text"),
            (shutil, "rmtree"),
        ]:
            monkeypatch.setattr(owner, name, self.counting(getattr(owner, name)))

    def counting(self, function):
        def counted(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Killed
            return function(*args, **kwargs)

        return counted


def write(folder, epoch):
    """What Keras writes: weights, here with the number of their epoch, and the epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / WEIGHTS, "w") as file:
        file["epoch"] = epoch
    (folder / METADATA).write_text(json.dumps({"epoch": epoch, "batch": 0}))


def read(folder):
    """The epoch of a backup, None if there is none."""
    if not (folder / WEIGHTS).exists() and not (folder / METADATA).exists():
        return None
    with h5py.File(folder / WEIGHTS) as file:
        epoch = int(file["epoch"][()])
    assert json.loads((folder / METADATA).read_text())["epoch"] == epoch
    return epoch


def backups(path, epochs):
    """A folder in which backups of epochs were written, one after the other."""
    folder = BackupFolder(path)
    for epoch in epochs:
        write(folder.staging, epoch)
        folder.commit()
    return folder


def flip(path, bit=1):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= bit
    path.write_bytes(content)


def killed_everywhere(prepare, act, check, tmp_path, monkeypatch):
    """Kills `act` at each operation, and then the recovery at each of its own."""
    prepare(tmp_path / "prepared")
    for number in itertools.count():
        ended = False
        for again in itertools.count():
            path = tmp_path / f"{number}-{again}"
            shutil.copytree(tmp_path / "prepared", path)
            with monkeypatch.context() as patch:
                Kill(patch, number)
                try:
                    act(BackupFolder(path))
                    ended = True
                except Killed:
                    pass
            with monkeypatch.context() as patch:
                Kill(patch, again)
                try:
                    BackupFolder(path).recover()
                    break
                except Killed:
                    pass
            BackupFolder(path).recover()
            check(path)
            shutil.rmtree(path, ignore_errors=True)  # removed by `act`, perhaps
        check(path)
        if ended:
            return


def test_a_backup_replaces_the_one_before_wherever_it_is_killed(tmp_path, monkeypatch):
    def prepare(path):
        write(backups(path, [1, 2]).staging, 3)

    def check(path):
        found.add(read(path))
        assert not list(path.rglob("*incomplete*"))
        write(path / ".incomplete", 4)
        BackupFolder(path).commit()
        assert (read(path), read(path / "previous")) in [(4, 3), (4, 2)]

    found = set()
    killed_everywhere(prepare, BackupFolder.commit, check, tmp_path, monkeypatch)
    assert found == {2, 3}


def test_the_first_backup_is_there_or_not_wherever_it_is_killed(tmp_path, monkeypatch):
    found = set()
    killed_everywhere(
        lambda path: write(BackupFolder(path).staging, 1),
        BackupFolder.commit,
        lambda path: found.add(read(path)),
        tmp_path,
        monkeypatch,
    )
    assert found == {None, 1}


@pytest.mark.filterwarnings("ignore:A backup is damaged")
def test_a_fall_back_can_be_killed_anywhere(tmp_path, monkeypatch):
    def prepare(path):
        backups(path, [1, 2, 3])
        flip(path / WEIGHTS)

    def check(path):
        assert read(path) == 2

    killed_everywhere(prepare, BackupFolder.recover, check, tmp_path, monkeypatch)


@pytest.mark.filterwarnings("ignore:.*no backup any more")
def test_removing_backups_can_be_killed_anywhere(tmp_path, monkeypatch):
    found = set()
    killed_everywhere(
        lambda path: backups(path, [1, 2, 3]),
        BackupFolder.delete,
        lambda path: found.add(read(path)),
        tmp_path,
        monkeypatch,
    )
    assert found == {3, None}


def test_removing_backups_leaves_other_files(tmp_path):
    folder = backups(tmp_path, [1, 2])
    for name in ("notes.txt", f"{WEIGHTS}.bkp", f"{METADATA}.bkp"):
        (tmp_path / name).write_text("")
    folder.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def _truncate(path):
    os.truncate(path, 96)


DAMAGES = {
    "bits in the weights": (flip, WEIGHTS, "has the SHA-256 checksum"),
    "bits in the epoch": (flip, METADATA, "has the SHA-256 checksum"),
    "bits in the checksums": (flip, "SHA256SUMS", "checksum"),
    "truncated weights": (_truncate, WEIGHTS, "has the SHA-256 checksum"),
    "truncated epoch": (lambda path: os.truncate(path, 4), METADATA, "has the SHA-256 checksum"),
    "no weights": (os.remove, WEIGHTS, "is missing"),
    "no epoch": (os.remove, METADATA, "is missing"),
    "empty checksums": (lambda path: os.truncate(path, 0), "SHA256SUMS", "has no checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_named_and_the_one_before_is_used(tmp_path, damage):
    act, name, said = DAMAGES[damage]
    folder = backups(tmp_path, [1, 2, 3])
    act(tmp_path / name)
    with pytest.warns(UserWarning, match=said) as record:
        folder.recover()
    (warning,) = [one for one in record if one.category is UserWarning]
    assert str(tmp_path) in str(warning.message)
    assert read(tmp_path) == 2
    folder.recover()  # it is whole now, and says nothing

    write(folder.staging, 3)
    folder.commit()
    assert (read(tmp_path), read(tmp_path / "previous")) == (3, 2)


def test_checksums_that_differ_are_shown(tmp_path):
    folder = backups(tmp_path, [1, 2])
    expected = (tmp_path / "SHA256SUMS").read_text().split()[0]
    flip(tmp_path / WEIGHTS)
    with pytest.warns(UserWarning, match=f"{WEIGHTS} has the .* checksum .*, expected {expected}"):
        folder.recover()


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_no_backup_is_whole_it_is_an_error(tmp_path, damage):
    act, name, said = DAMAGES[damage]
    folder = backups(tmp_path, [1, 2])
    act(tmp_path / name)
    _truncate(tmp_path / "previous" / WEIGHTS)
    before = sorted(tmp_path.glob("[!.]*"))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"(?s)Delete the folder.*Received: .*{said}") as error:
            folder.recover()
    assert str(tmp_path / "previous" / WEIGHTS) in str(error.value)
    assert sorted(tmp_path.glob("[!.]*")) == before


def test_files_belong_together_only_if_they_were_written_together(tmp_path):
    folder = backups(tmp_path, [1, 2, 3])
    shutil.copy(tmp_path / "previous" / METADATA, tmp_path / METADATA)
    with pytest.warns(UserWarning, match=METADATA):
        folder.recover()
    assert read(tmp_path) == 2


def test_a_backup_without_checksums_is_used_and_kept(tmp_path):
    write(tmp_path, 5)
    folder = BackupFolder(tmp_path)
    folder.recover()
    assert read(tmp_path) == 5
    write(folder.staging, 6)
    folder.commit()
    assert (read(tmp_path), read(tmp_path / "previous")) == (6, 5)
    flip(tmp_path / WEIGHTS)
    with pytest.warns(UserWarning, match="damaged"):
        folder.recover()
    assert read(tmp_path) == 5


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (WEIGHTS, None, "is missing"),
        (METADATA, None, "is missing"),
        (WEIGHTS, "x" * 96, "cannot be read"),
        (METADATA, "", "cannot be read .JSONDecodeError"),
        (METADATA, "[]", "cannot be read"),
        (METADATA, '{"batch": 0}', "cannot be read"),
        (METADATA, '{"epoch": "one"}', "has no number"),
    ],
)
def test_visible_damage_of_a_backup_without_checksums_is_an_error(tmp_path, name, content, said):
    write(tmp_path, 5)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"Received: .*{name} {said}.*no previous backup"):
        BackupFolder(tmp_path).recover()


def test_keras_double_checkpoint_is_a_previous_backup(tmp_path):
    write(tmp_path, 4)
    for name in (WEIGHTS, METADATA):
        (tmp_path / name).rename(tmp_path / f"{name}.bkp")
    write(tmp_path, 5)
    _truncate(tmp_path / WEIGHTS)
    with pytest.warns(UserWarning, match="damaged"):
        BackupFolder(tmp_path).recover()
    assert read(tmp_path) == 4


def test_a_backup_that_keras_wrote_later_without_tfdist_is_used(tmp_path):
    folder = backups(tmp_path, [1, 2])
    write(tmp_path, 7)
    with pytest.warns(UserWarning, match="without checksums"):
        folder.recover()
    assert read(tmp_path) == 7
    write(folder.staging, 8)
    folder.commit()
    assert (read(tmp_path), read(tmp_path / "previous")) == (8, 7)


def test_who_removes_the_backup_starts_anew(tmp_path):
    folder = backups(tmp_path, [1, 2])
    for name in (WEIGHTS, METADATA):
        (tmp_path / name).unlink()
    with pytest.warns(UserWarning, match="starts anew"):
        folder.recover()
    assert read(tmp_path) is None
    write(folder.staging, 1)
    folder.commit()
    assert read(tmp_path) == 1


def test_the_usual_tool_can_check_a_backup(tmp_path):
    import subprocess

    backups(tmp_path, [1, 2])
    for folder in (tmp_path, tmp_path / "previous"):
        command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == f"{WEIGHTS}: OK\n{METADATA}: OK\n"
