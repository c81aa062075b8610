"""The file of an interrupted `make equivalence`."""

import json

import pytest

from tests.equivalence import dependence
from tests.equivalence.cells import Cells, of_test
from tests.equivalence.dependence import state_of_cell
from tests.equivalence.table import Cell, PeerCell


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "cells.jsonl"


def change(path, **values):
    """Rewrites the rows of the file with other values."""
    rows = [{**json.loads(line), **values} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_cells_are_found_again(path):
    cells = Cells(path)
    cells.add("mirrored-2", "SGD", Cell(True, 3e-8))
    cells.add("keras-mirrored", "SGD", PeerCell("ValueError"))
    again = Cells(path)
    assert again.ours == cells.ours == {"mirrored-2": {"SGD": Cell(True, 3e-8)}}
    assert again.peers == cells.peers == {"keras-mirrored": {"SGD": PeerCell("ValueError")}}


def test_the_last_of_two_cells_counts(path):
    cells = Cells(path)
    cells.add("mirrored-2", "SGD", Cell(False, 1.0))
    cells.add("mirrored-2", "SGD", Cell(True, 3e-8))
    assert Cells(path).ours == {"mirrored-2": {"SGD": Cell(True, 3e-8)}}


@pytest.mark.parametrize(
    "values", [{"state": "others"}, {"feature": "was removed"}, {"column": "was removed"}]
)
def test_cells_of_something_else_are_measured_again(path, values):
    Cells(path).add("mirrored-2", "SGD", Cell(True, 3e-8))
    change(path, **values)
    assert not Cells(path).ours


def changed_by(monkeypatch, tmp_path, name):
    """The cells, of five, that a change of the file `name` in tfdist measures again."""
    cells = [
        ("mirrored-2", "SGD"),
        ("horovod-2", "SGD"),
        ("parameter_server-2", "SGD"),
        ("parameter_server-2", "LSTM"),
        ("keras-mirrored", "SGD"),
    ]
    before = [state_of_cell(*cell) for cell in cells]
    changed = tmp_path / "changed.py"
    changed.write_text("# changed\n")
    real = dependence._checksum

    def checksum(names, sources):
        return real(names, [changed if str(path).endswith(name) else path for path in sources])

    monkeypatch.setattr(dependence, "_checksum", checksum)
    dependence._state.cache_clear()
    after = [state_of_cell(*cell) for cell in cells]
    monkeypatch.undo()
    dependence._state.cache_clear()
    return [was != now for was, now in zip(before, after)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tfdist/step/exchange.py", [True, True, True, True, False]),
        ("tfdist/staleness/base.py", [False, False, True, True, False]),
        ("tfdist/launcher/ranks.py", [True, True, True, True, False]),
        ("tfdist/cli/run.py", [False] * 5),
        ("tests/equivalence/columns.py", [True, True, True, True, False]),
        ("tests/equivalence/peers.py", [False, False, False, False, True]),
        ("tests/equivalence/compare.py", [True] * 5),
        ("tests/equivalence/features/layers.py", [False, False, False, True, False]),
    ],
)
def test_cells_depend_on_what_trains_them(monkeypatch, tmp_path, name, expected):
    assert changed_by(monkeypatch, tmp_path, name) == expected


def test_a_failed_test_is_a_failed_cell():
    assert not of_test(False, {}).passed
    assert of_test(True, {"weight_difference": "1e-8", "twin_difference": "0.0"}) == Cell(
        True, 1e-8, 0.0
    )
    assert of_test(True, {"refused": "yes"}).refused
