"""What a rank of `tfdist test` has found, or what has failed: in lines, a file, and a status."""

import json
import types

import pytest
import tensorflow as tf

from tests.cluster import test_environments as launchers
from tfdist.checkup import page, rank
from tfdist.cli.main import main


@pytest.fixture
def examined(monkeypatch):
    """A rank 0 that has found nothing wrong; gives a function that sets what it does instead."""
    for name, value in launchers.kubeflow("worker", 0, worker=2).items():
        monkeypatch.setenv(name, value)
    found = types.SimpleNamespace(problems=[], as_json=lambda: {"ranks": 2})
    monkeypatch.setattr(page, "as_text", lambda found: "the page")
    monkeypatch.setattr(rank, "examine", lambda *given: found)
    return lambda act: monkeypatch.setattr(rank, "examine", act)


def test_a_link_stays_one(examined, tmp_path, capsys):
    file, link = tmp_path / "file.json", tmp_path / "link.json"
    file.write_text("old")
    link.symlink_to(file)
    assert main(["test", "--json", str(link)]) == 0
    assert link.is_symlink() and json.loads(file.read_text()) == {"ranks": 2}
    assert capsys.readouterr().out == "the page\n"


def test_a_file_that_cannot_be_written_at_the_end_is_a_line(examined, tmp_path, capsys):
    path = tmp_path / "file.json"
    found = rank.examine()

    def remove(*given):
        path.mkdir()
        return found

    examined(remove)
    assert main(["test", "--json", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "the page\n"
    assert shown.err == f"tfdist test: {path} could not be written: Is a directory\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("ranks differ"), "ranks differ"),
        (RuntimeError("Horovod\n has shut down"), "RuntimeError: Horovod has shut down"),
        (tf.errors.UnavailableError(None, None, "gone"), "UnavailableError: gone"),
    ],
    ids=["ours", "of Horovod", "of TensorFlow"],
)
def test_what_fails_is_a_problem_and_no_traceback(error, line, examined, capsys):
    def fail(*given):
        raise error

    examined(fail)
    assert main(["test"]) == 1
    assert capsys.readouterr().out == f"Problems\n  the ranks cannot train together: {line}\n"


def test_standard_output_is_no_file_for_json(examined, capsys):
    assert main(["test", "--json", "-"]) == 2
    assert "--json takes the name of a file" in capsys.readouterr().err
