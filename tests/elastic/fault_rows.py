"""What faults do to elastic jobs: the rows of the table in docs/elastic.md."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from tests.elastic import machines, test_faults, test_surroundings
from tests.faults import surroundings
from tests.faults.rows import Row, difference

HEAD = ["engine", "what happens to a rank", "ranks at the end", "seconds", "max Δw"]
_SLOWLY = {"EPOCHS": "8", "SECONDS": "0.2"}
TEXT = (
    "Three ranks, of which rank 1 is meant if none is named; two or three machines where that "
    "is said. The seconds are those of the whole `fit` in the first rank that came to the end: "
    "with traces, new groups, and the time until a fault is noticed or a new rank has come. "
    "The largest difference of a weight is that from one device. For each row the ranks, their "
    "weights, histories, counters and files are compared with those of one device, and no process "
    "may be left."
)


@functools.cache
def _one_device(**environ: str) -> dict:
    """The result of one device."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        done = test_faults.launch(folder, "tests.elastic.job", name, **environ)
        assert done.returncode == 0, done.stderr
        return pickle.loads((folder / "rank-0.pickle").read_bytes())


def _cells(folder: pathlib.Path, left: Sequence[int], **environ: str) -> list[str]:
    """Compares with one device; the ranks that came to the end, the seconds, the difference."""
    paths = {int(path.stem[5:]): path for path in folder.glob("rank-*.pickle")}
    missing = set(left) - set(paths)
    assert not missing, f"ranks {sorted(missing)} have not come to the end"
    expected = _one_device(**environ)
    test_faults.check(folder, [*left], expected)
    first = pickle.loads(paths[min(left)].read_bytes())
    there = ", ".join(str(number) for number in sorted(paths))
    apart = difference(first["weights"], expected["weights"])
    return [there, f"{first['seconds']:.1f}", apart]


def _alone(
    engine: str, faults: Sequence[str], left: Sequence[int], kind: str = "", **options
) -> Callable[[pathlib.Path], list[str]]:
    """On one machine."""

    def inject(folder: pathlib.Path) -> list[str]:
        with surroundings.around(kind, folder) as variables:
            done = test_faults.train(folder, engine, *faults, **options, **variables)
        assert done.returncode == 0, f"status {done.returncode}"
        return _cells(folder, left)

    return inject


def _on_machines(engine: str, name: str) -> Callable[[pathlib.Path], list[str]]:
    faults, least, left, statuses = machines.FAULTS[name]

    def inject(folder: pathlib.Path) -> list[str]:
        with contextlib.closing(machines.Machines(folder, engine, faults)) as job:
            restarts = str(len(faults)) if least == 4 else "0"
            for _ in range(2):
                job.start(2, "--min", str(least), "--restarts", restarts)
                time.sleep(0.5)  # the first one serves
            assert job.ends() == statuses, "other statuses"
        return _cells(folder, left)

    return inject


def _on_hosts(engine: str, name: str) -> Callable[[pathlib.Path], list[str]]:
    _, left, statuses = machines.NETWORK[name]

    def inject(folder: pathlib.Path) -> list[str]:
        with (
            contextlib.closing(machines.Machines(folder, engine, (), **_SLOWLY)) as job,
            machines.network_fault(name, job),
        ):
            assert job.ends() == statuses, "other statuses"
        return _cells(folder, left, EPOCHS=_SLOWLY["EPOCHS"])

    return inject


def rows(engine: str) -> Iterator[Row]:
    """A row for each fault, after one for none."""
    yield Row(engine, "nothing", _alone(engine, [], [0, 1, 2]))
    for name, (faults, left) in test_faults.FAULTS.items():
        yield Row(engine, name, _alone(engine, faults, left))
    for name, (faults, left) in test_faults.REPLACED.items():
        replacing = {"least": 3, "restarts": len(faults)}
        yield Row(engine, f"{name}; replaced", _alone(engine, faults, left, **replacing))
    for name, (kind, faults, options, left) in test_surroundings.SURROUNDINGS.items():
        yield Row(engine, name, _alone(engine, faults, left, kind, **options))
    for name in machines.FAULTS:
        yield Row(engine, f"two machines: {name}", _on_machines(engine, name))
    for name in machines.NETWORK:
        yield Row(engine, f"three machines: {name}", _on_hosts(engine, name))
