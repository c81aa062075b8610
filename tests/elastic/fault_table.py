"""What faults do to elastic jobs: a table of docs/elastic.md, from a run of all of them.

python -m tests.elastic.fault_table             # half an hour; needs root for the network's
python -m tests.elastic.fault_table --update
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import pickle
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import pages
from benchmarks.common import machine, options, tables
from tests.elastic import machines, test_faults

_SLOWLY = {"EPOCHS": "8", "SECONDS": "0.2"}


def results(folder: pathlib.Path) -> dict[int, dict]:
    """What the ranks have written that came to the end."""
    paths = sorted(folder.glob("rank-*.pickle"))
    return {int(path.stem[5:]): pickle.loads(path.read_bytes()) for path in paths}


def row(name: str, folder: pathlib.Path, expected: dict) -> list[str]:
    """What came of a fault: the ranks that came to the end, the seconds, and the difference."""
    found = results(folder)
    if not found:
        return [name, "none", "", "no result"]
    first = found[min(found)]
    pairs = zip(first["weights"], expected["weights"])
    difference = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    left = ", ".join(str(number) for number in found)
    return [name, left, f"{first['seconds']:.1f}", f"{difference:.0e}"]


@contextlib.contextmanager
def folders() -> Iterator[pathlib.Path]:
    """A folder for one job."""
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


def one_device(**environ: str) -> dict:
    """The result of one device."""
    with folders() as folder:
        test_faults.launch(folder, "tests.elastic.job", str(folder), **environ)
        return results(folder)[0]


def rows(engine: str, expected: dict, expected_of_long: dict) -> Iterator[list[str]]:
    """A row for each fault, after one for none."""
    with folders() as folder:
        test_faults.train(folder, engine)
        yield row("nothing", folder, expected)
    for name, (faults, _) in test_faults.FAULTS.items():
        with folders() as folder:
            test_faults.train(folder, engine, *faults)
            yield row(name, folder, expected)
    for name, (faults, _) in test_faults.REPLACED.items():
        with folders() as folder:
            test_faults.train(folder, engine, *faults, least=3, restarts=len(faults))
            yield row(f"{name}; replaced", folder, expected)
    for name, (faults, least, *_) in machines.FAULTS.items():
        with (
            folders() as folder,
            contextlib.closing(machines.Machines(folder, engine, faults)) as job,
        ):
            for _ in range(2):
                job.start(
                    2, "--min", str(least), "--restarts", str(len(faults)) if least == 4 else "0"
                )
                time.sleep(0.5)
            job.ends()
            yield row(f"two machines: {name}", folder, expected)
    for name in machines.NETWORK:
        with (
            folders() as folder,
            contextlib.closing(machines.Machines(folder, engine, (), **_SLOWLY)) as job,
        ):
            with machines.network_fault(name, job):
                job.ends()
            yield row(f"three machines: {name}", folder, expected_of_long)


def main() -> None:
    """Injects all faults, and prints the table."""
    parser = options.parser(__doc__)
    engines = ("multi_worker", "horovod")
    parser.add_argument("--engines", nargs="+", choices=engines, default=list(engines))
    pages.add_output_options(parser, pages.ELASTIC_PAGE)
    arguments: argparse.Namespace = parser.parse_args()
    expected, of_long = one_device(), one_device(**_SLOWLY)
    found = []
    for engine in arguments.engines:
        for one in rows(engine, expected, of_long):
            print(engine, *one, sep=" | ", flush=True)
            found.append([engine, *one])
    head = ["engine", "what happens to a rank", "ranks at the end", "seconds", "max Δw"]
    text = (
        "Three ranks, of which rank 1 is meant if none is named; two or three machines where that "
        "is said. The seconds are those of the whole `fit` in the first rank that came to the end: "
        "with traces, new groups, and the time until a fault is noticed or a new rank has come. "
        "The largest difference of a weight is that from one device. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make fault-table`."
    )
    table = "\n".join([*tables.table(head, found), "", text])
    pages.publish(arguments, "faults", table, found)


if __name__ == "__main__":
    main()
