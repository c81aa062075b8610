"""The measured cells of the equivalence table, in a file that grows while they are measured.

An interrupted `make equivalence` goes on with what is missing. A cell is measured again when what
it depends on has changed, or when it failed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping

from tests.equivalence.dependence import state_of_cell
from tests.equivalence.table import Cell, Ours, PeerCell, Peers

VARIABLE = "TFDIST_EQUIVALENCE_CELLS"
"""The environment variable that names the file to the tests, which measure tfdist's own cells."""


class Cells:
    """The file. A row holds one cell, and the state of what the cell depends on.

    Args:
        path: where it is, or will be.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.ours: Ours = {}
        self.peers: Peers = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            self._take(**json.loads(line))

    @classmethod
    def of_environment(cls) -> Cells | None:
        """The file that the environment names; None for none."""
        return cls(pathlib.Path(os.environ[VARIABLE])) if VARIABLE in os.environ else None

    def add(self, column: str, feature: str, cell: Cell | PeerCell) -> None:
        """Writes one more cell."""
        row = {
            "kind": "ours" if isinstance(cell, Cell) else "peers",
            "column": column,
            "feature": feature,
            "state": state_of_cell(column, feature),
            "cell": dataclasses.asdict(cell),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(**row)

    def _take(self, kind: str, column: str, feature: str, state: str, cell: dict) -> None:
        if state != state_of_cell(column, feature):
            return  # it is measured again
        if kind == "ours":
            self.ours.setdefault(column, {})[feature] = Cell(**cell)
        else:
            self.peers.setdefault(column, {})[feature] = PeerCell(**cell)


def of_test(passed: bool, properties: Mapping[str, object]) -> Cell:
    """The cell of a test that has ended.

    Args:
        passed: whether it passed.
        properties: what it recorded about itself.
    """
    twin = properties.get("twin_difference")
    return Cell(
        passed,
        float(str(properties.get("weight_difference", math.inf))),
        None if twin is None else float(str(twin)),
        "refused" in properties,
    )
