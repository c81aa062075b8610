"""The measured cells of the equivalence table, in a file that grows while they are measured.

An interrupted `make equivalence` goes on with what is missing, unless the sources have changed
since.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping

from tests.equivalence.results import state_of_the_sources
from tests.equivalence.table import Cell, Ours, PeerCell, Peers

VARIABLE = "TFDIST_EQUIVALENCE_CELLS"
"""The environment variable that names the file to the tests, which measure tfdist's own cells."""


class Cells:
    """The file.

    Args:
        path: where it is, or will be.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.ours: Ours = {}
        self.peers: Peers = {}
        state = state_of_the_sources()
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        if not rows or rows[0] != {"sources": state}:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"sources": state}) + "\n")
        for row in rows[1:] if rows and rows[0] == {"sources": state} else ():
            self._take(**row)

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
            "cell": dataclasses.asdict(cell),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(**row)

    def _take(self, kind: str, column: str, feature: str, cell: dict) -> None:
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
