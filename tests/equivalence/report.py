"""Writes the equivalence table: tfdist beside plain Keras, measured by the same features.

python -m tests.equivalence.report          # what is missing; docs/equivalence.md says how long
python -m tests.equivalence.report --fresh  # everything
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks import pages
from tests.equivalence import compare, harness, table
from tests.equivalence.cells import VARIABLE, Cells
from tests.equivalence.features import FEATURES, SAMPLE
from tests.equivalence.job import Job
from tests.equivalence.peers import PEERS, Peer
from tests.equivalence.ranks import JobError, JobHangsError, Limits, Ranks
from tests.equivalence.results import Result, Shared

# All tests passed, or some failed, or every cell was measured already.
_TESTS_ENDED = (0, 1, 5)
# A peer that is much slower than this on two small epochs hangs.
_LIMITS = Limits(start=120, feature=90, failures=len(FEATURES))


def run_tfdist(path: pathlib.Path, folder: pathlib.Path, arguments: list[str]) -> None:
    """Measures the missing cells of tfdist's columns, by the tests.

    Exits where the tests were interrupted or did not start: the table would lack their cells.

    Args:
        path: the file of the cells.
        folder: where the tests leave results for others.
        arguments: more arguments for pytest.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["-m", "full or not full", *arguments, "tests/equivalence/test_equivalence.py"]
    environ = {**os.environ, "TFDIST_EQUIVALENCE_RESULTS": str(folder), VARIABLE: str(path)}
    status = subprocess.run(command, env=environ, check=False).returncode
    if status not in _TESTS_ENDED:
        sys.exit(f"The tests of the table ended with status {status}: no table is written.")


def run_peer(peer: Peer, features: list[str], folder: pathlib.Path, cells: Cells) -> None:
    """Measures what Keras alone gives for the `features`, by name, where it is missing."""
    missing = [name for name in features if name not in cells.peers.get(peer.name, {})]
    if not missing:
        return
    ranks = Ranks(peer.name, peer.launcher, peer.processes)
    running = Job(ranks, missing, folder / peer.name, _LIMITS)
    shared = Shared(folder)
    for feature in (feature for feature in FEATURES if feature.name in missing):
        try:
            cell = _compared(running.result(feature.name), feature, shared)
        except JobHangsError:
            cell = table.PeerCell("hang")
        except JobError as error:
            cell = table.PeerCell(_name_of_the_error(str(error)))
        cells.add(peer.name, feature.name, cell)
        print(peer.name, "|", feature.name, "|", cell, flush=True)
    running.stop()


def _compared(ranks: list[Result], feature: harness.Feature, shared: Shared) -> table.PeerCell:
    def compute() -> Result:
        return Result(harness.train_on_one_device(feature), [])

    expected = shared.get(("one device", feature.name), compute).outcome
    histories = [compare.history_difference(rank.outcome, expected) for rank in ranks]
    return table.PeerCell(
        weight_difference=max(compare.weight_difference(r.outcome, expected) for r in ranks),
        history_difference=max(histories) if feature.history else 0.0,
        ranks_differ=bool(compare.differing_variables(ranks)),
    )


def _name_of_the_error(text: str) -> str:
    """The class of the Python error that ended the first rank that reported one."""
    first, *_ = re.split(r"^rank [1-9]", text, flags=re.MULTILINE)
    names = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception))(?::|$)", first, re.MULTILINE)
    return names[-1] if names else "crash"


def main() -> None:
    """Measures both, prints the table, and writes it and its summary into their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=pathlib.Path, default=pages.EQUIVALENCE_PAGE)
    parser.add_argument("--readme", type=pathlib.Path, default=pages.README)
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are kept")
    parser.add_argument("--features", metavar="EXPRESSION", help="some of them, as pytest's -k")
    parser.add_argument(
        "--cells",
        type=pathlib.Path,
        default=pages.ROOT / "out" / "equivalence.jsonl",
        metavar="FILE",
        help="where cells are kept; what has not changed since is not measured again",
    )
    arguments = parser.parse_args()
    chosen = ["-k", arguments.features] if arguments.features else []
    path = arguments.cells.resolve()
    if arguments.fresh:
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_tfdist(path, folder, chosen)
        cells = Cells(path)
        trained = {feature for column in cells.ours.values() for feature in column}
        wanted = [feature.name for feature in FEATURES if feature.name in trained]
        sample = [feature for feature in wanted if feature in SAMPLE]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = [
                pool.submit(run_peer, peer, wanted if peer.complete else sample, folder, cells)
                for peer in PEERS
            ]
            for future in running:
                future.result()
    content = table.table(cells.ours, cells.peers)
    summary = table.summary(cells.ours, cells.peers)
    pages.update(arguments.page, "equivalence", f"{summary}\n\n{content}")
    pages.update(arguments.readme, "equivalence", summary)
    print(summary, content, sep="\n\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)  # without the threads, whose peers take minutes
