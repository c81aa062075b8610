"""Whether a file can be written is known before training: also the one beside it, written first."""

import os
import subprocess
import sys
import tempfile

import pytest

from tfdist.arguments import problem_with_file, why_unwritable
from tfdist.watch.files import write_whole

NOBODY = 65534
ASKS = """
import os, sys
from tfdist.arguments import why_unwritable
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid({nobody})
print(why_unwritable(sys.argv[1]))
"""


@pytest.fixture
def folder():
    """A folder of the tests' user that others may read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield path


def test_a_file_that_can_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "old"
    path.write_text("old")
    assert why_unwritable(path) == "" == why_unwritable(tmp_path / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["old"]
    assert path.read_text() == "old"


def test_what_is_no_file_is_refused(tmp_path):
    assert why_unwritable(tmp_path) == "Is a directory"
    error = problem_with_file("report", "path", tmp_path / "missing" / "file")
    assert "No such file or directory. Received: path='" in str(error)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_pipe_is_refused_and_stays(is_link, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = pipe
    if is_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    assert why_unwritable(path) == "Not a regular file"  # and nobody waits for a reader
    assert pipe.is_fifo()


def test_a_link_to_no_file_stays_one(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("new")
    assert why_unwritable(link) == ""
    assert link.is_symlink() and not link.exists()


def test_a_folder_is_made_where_that_is_wanted(tmp_path):
    path = tmp_path / "out" / "of" / "it" / "file"
    assert problem_with_file("report", "path", path, makes_folder=True) is None
    assert list(path.parent.iterdir()) == []
    (tmp_path / "taken").touch()
    error = problem_with_file("report", "path", tmp_path / "taken" / "file", makes_folder=True)
    assert "that exists or can be made: Not a directory. Received: path='" in str(error)


def test_a_link_stays_one_and_the_umask_holds(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    before = os.umask(0o027)
    try:
        write_whole(link, "new")
        assert file.stat().st_mode & 0o777 == 0o640
        file.chmod(0o604)
        write_whole(link, "newer")
    finally:
        os.umask(before)
    assert link.is_symlink() and file.read_text() == "newer"
    assert file.stat().st_mode & 0o777 == 0o604
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_what_has_no_utf_8_is_an_escape(tmp_path):
    write_whole(tmp_path / "page", "of a script named \udce9.py")
    assert (tmp_path / "page").read_text() == "of a script named \\udce9.py"


def test_an_old_file_in_a_folder_that_takes_no_new_one_is_refused(folder):
    path = os.path.join(folder, "old")
    with open(path, "w"):
        os.chmod(path, 0o666)
    os.chmod(folder, 0o555 if os.geteuid() else 0o755)
    command = [sys.executable, "-c", ASKS.format(nobody=NOBODY), path]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert found.stdout == "Permission denied\n"
