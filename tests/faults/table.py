"""What faults do to jobs: the tables of docs/elastic.md and docs/faults.md, from a run of them.

Each row is written into its page at once, so an interrupted run keeps its rows. The next one goes
on with those that are missing, and those that have failed. A row has a deadline of ten minutes.

python -m tests.faults.table --update          # an hour and a half; needs root for disks, networks
python -m tests.faults.table --update --fresh  # all rows anew
python -m tests.faults.table --kinds horovod   # without --update, prints all rows
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from benchmarks import pages
from benchmarks.common import machine, options, tables
from tests.elastic import fault_rows
from tests.faults import server_rows, servers_job
from tests.faults.rows import FAILED, Row

NAME = "faults"
_WHEN = "run on"


class Kind(NamedTuple):
    """Rows of one engine or policy, and the table that has them."""

    rows: Callable[[str], Iterable[Row]]
    page: pathlib.Path
    head: list[str]
    text: str


def _kinds() -> Iterator[tuple[str, Kind]]:
    for engine in ("multi_worker", "horovod"):
        texts = fault_rows.HEAD, fault_rows.TEXT
        yield engine, Kind(fault_rows.rows, pages.ELASTIC_PAGE, *texts)
    for policy in servers_job.POLICIES:
        texts = server_rows.HEAD, server_rows.TEXT
        yield policy, Kind(server_rows.rows, pages.FAULTS_PAGE, *texts)


KINDS = dict(_kinds())


def kept(page: pathlib.Path) -> dict[tuple[str, str], list[str]]:
    """The rows of a page's table, by their first two cells."""
    text = page.read_text(encoding="utf-8")
    table = text.partition(f"<!-- {NAME}:begin -->")[2].partition(f"<!-- {NAME}:end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1]): row for row in cells}


def write(page: pathlib.Path, found: dict[tuple[str, str], list[str]]) -> None:
    """Writes the table of a page, in the order of `KINDS`; rows that are no faults any more go."""
    kinds = {name: kind for name, kind in KINDS.items() if kind.page == page}
    places = [(row.kind, row.name) for name, kind in kinds.items() for row in kind.rows(name)]
    first = next(iter(kinds.values()))
    text = (
        f"{first.text} {machine.measured_with('TensorFlow', 'Keras')}. Made by `make fault-table`; "
        "where the machine was shared, other jobs ran beside it, and the seconds are too many."
    )
    rows = [found[place] for place in places if place in found]
    table = tables.table([*first.head, _WHEN], rows, "tttnnt")
    pages.update(page, NAME, "\n".join([*table, "", text]))


def main() -> int:
    """Injects faults, and prints what came of them."""
    parser = options.parser(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", default="", help="faults whose names have this text")
    parser.add_argument("--update", action="store_true", help="write the tables of the pages")
    parser.add_argument("--fresh", action="store_true", help="also rows that the pages have")
    parser.add_argument("--shared", action="store_true", help="say that the machine was shared")
    arguments: argparse.Namespace = parser.parse_args()
    when = f"{datetime.date.today()}{', shared' if arguments.shared else ''}"
    failed = 0
    for name in arguments.kinds:
        kind = KINDS[name]
        for row in kind.rows(name):
            before = kept(kind.page).get((row.kind, row.name)) if arguments.update else None
            is_there = before is not None and not before[2].startswith(FAILED)
            if arguments.only not in row.name or (is_there and not arguments.fresh):
                continue
            cells = [*row.cells(len(kind.head) - 2), when]
            print(*cells, sep=" | ", flush=True)
            failed += cells[2].startswith(FAILED)
            if arguments.update:
                write(kind.page, {**kept(kind.page), (row.kind, row.name): cells})
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
