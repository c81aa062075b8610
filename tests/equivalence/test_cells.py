"""The file of an interrupted `make equivalence`."""

import json

from tests.equivalence.cells import Cells, of_test
from tests.equivalence.table import Cell, PeerCell


def test_cells_are_found_again(tmp_path):
    path = tmp_path / "out" / "cells.jsonl"
    cells = Cells(path)
    cells.add("mirrored-2", "SGD", Cell(True, 3e-8))
    cells.add("keras-mirrored", "SGD", PeerCell("ValueError"))
    again = Cells(path)
    assert again.ours == cells.ours == {"mirrored-2": {"SGD": Cell(True, 3e-8)}}
    assert again.peers == cells.peers == {"keras-mirrored": {"SGD": PeerCell("ValueError")}}


def test_cells_of_other_sources_are_measured_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    Cells(path).add("mirrored-2", "SGD", Cell(True, 3e-8))
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({"sources": "others"}), *rest]) + "\n")
    assert not Cells(path).ours
    assert path.read_text().splitlines() == [first]


def test_a_failed_test_is_a_failed_cell():
    assert not of_test(False, {}).passed
    assert of_test(True, {"weight_difference": "1e-8", "twin_difference": "0.0"}) == Cell(
        True, 1e-8, 0.0
    )
    assert of_test(True, {"refused": "yes"}).refused
