"""Writes the equivalence table of the README: tfdist beside plain Keras, from the same run.

python -m tests.equivalence.report          # runs everything; docs/equivalence.md says how long
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

from benchmarks import readme
from tests.equivalence import compare, harness, table
from tests.equivalence.cells import VARIABLE, Cells
from tests.equivalence.features import FEATURES, SAMPLE
from tests.equivalence.job import Job
from tests.equivalence.peers import PEERS, Peer
from tests.equivalence.ranks import JobError, JobHangsError, Limits, Ranks
from tests.equivalence.results import Result, Shared

# A peer that is much slower than this on two small epochs hangs.
_LIMITS = Limits(start=120, feature=90, failures=len(FEATURES))


def run_tfdist(path: pathlib.Path, folder: pathlib.Path, arguments: list[str]) -> None:
    """Measures the missing cells of tfdist's columns, by the tests.

    Args:
        path: the file of the cells.
        folder: where the tests leave results for others.
        arguments: more arguments for pytest.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["-m", "full or not full", *arguments, "tests/equivalence/test_equivalence.py"]
    environ = {**os.environ, "TFDIST_EQUIVALENCE_RESULTS": str(folder), VARIABLE: str(path)}
    subprocess.run(command, env=environ, check=False)


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
    """Runs both, prints the table and writes it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readme", type=pathlib.Path, default=readme.README)
    parser.add_argument("--features", metavar="EXPRESSION", help="some of them, as pytest's -k")
    parser.add_argument(
        "--cells",
        type=pathlib.Path,
        default=readme.ROOT / "out" / "equivalence.jsonl",
        metavar="FILE",
        help="where cells are kept; those of the same sources are not measured again",
    )
    arguments = parser.parse_args()
    chosen = ["-k", arguments.features] if arguments.features else []
    path = arguments.cells.resolve()
    Cells(path)
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
    readme.update(arguments.readme, "equivalence", content)
    print(content)


if __name__ == "__main__":
    main()
