"""The options of snapshots, and what a fit without lost servers does with them."""

import pytest

from tfdist.strategies.parameter_server import checks


@pytest.mark.parametrize(
    ("given", "folder", "record", "expected"),
    [
        (None, None, None, None),
        (None, "shared", None, None),
        (None, None, "run.log", 0),
        (False, None, "run.log", 0),
        (0, "shared", "run.log", 0),
        (0, None, None, 0),
        (7, None, None, 7),
    ],
)
def test_the_number_of_updates_between_snapshots(given, folder, record, expected):
    assert checks.updates_of_snapshots(given, folder, record) == expected


@pytest.mark.parametrize("given", [-1, 1.5, "1"])
def test_other_values_are_refused(given):
    with pytest.raises((ValueError, TypeError), match="snapshot_every"):
        checks.updates_of_snapshots(given, None, None)


@pytest.mark.parametrize(("given", "folder"), [(7, None), (None, "shared")])
def test_a_record_has_no_snapshots(given, folder):
    with pytest.raises(ValueError, match=r"Received: snapshot_every=.*, record='run.log'"):
        checks.updates_of_snapshots(given, folder, "run.log")


def test_the_folder_is_the_same_in_all_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checks.absolute("shared") == str(tmp_path / "shared")
    assert checks.absolute("gs://bucket/shared") == "gs://bucket/shared"
    assert checks.absolute(None) is None
