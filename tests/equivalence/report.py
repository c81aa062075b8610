"""Writes the equivalence table of the README: tfdist beside plain Keras, from the same run.

python -m tests.equivalence.report          # runs everything; docs/equivalence.md says how long
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from benchmarks import readme
from tests.equivalence import compare, harness, table
from tests.equivalence.features import FEATURES, SAMPLE
from tests.equivalence.job import Job
from tests.equivalence.peers import PEERS, Peer
from tests.equivalence.ranks import JobError, JobHangsError, Limits, Ranks
from tests.equivalence.results import Result, Shared

# A peer that is much slower than this on two small epochs hangs.
_LIMITS = Limits(start=120, feature=90, failures=len(FEATURES))


def run_tfdist(folder: pathlib.Path, arguments: list[str]) -> table.Ours:
    """All cells of tfdist's columns, by the tests.

    Args:
        folder: where the tests leave results for others.
        arguments: more arguments for pytest.
    """
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["-m", "full or not full", f"--junitxml={report}", *arguments]
    command += ["tests/equivalence/test_equivalence.py"]
    environ = {**os.environ, "TFDIST_EQUIVALENCE_RESULTS": str(folder)}
    subprocess.run(command, env=environ, check=False)
    cells: table.Ours = {}
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        if case.find("skipped") is not None or "column" not in properties:
            continue
        passed = case.find("failure") is None and case.find("error") is None
        twin = properties.get("twin_difference")
        cells.setdefault(properties["column"], {})[properties["feature"]] = table.Cell(
            passed,
            float(properties.get("weight_difference", math.inf)),
            None if twin is None else float(twin),
            "refused" in properties,
        )
    return cells


def run_peer(peer: Peer, features: list[str], folder: pathlib.Path) -> dict[str, table.PeerCell]:
    """What Keras alone gives for the `features`, by name."""
    ranks = Ranks(peer.name, peer.launcher, peer.processes)
    running = Job(ranks, features, folder / peer.name, _LIMITS)
    shared = Shared(folder)
    cells = {}
    for feature in (feature for feature in FEATURES if feature.name in features):
        try:
            cells[feature.name] = _compared(running.result(feature.name), feature, shared)
        except JobHangsError:
            cells[feature.name] = table.PeerCell("hang")
        except JobError as error:
            cells[feature.name] = table.PeerCell(_name_of_the_error(str(error)))
        print(peer.name, "|", feature.name, "|", cells[feature.name], flush=True)
    running.stop()
    return cells


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
    arguments = parser.parse_args()
    chosen = ["-k", arguments.features] if arguments.features else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ours = run_tfdist(folder, chosen)
        trained = {feature for cells in ours.values() for feature in cells}
        wanted = [feature.name for feature in FEATURES if feature.name in trained]
        sample = [feature for feature in wanted if feature in SAMPLE]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = {
                peer.name: pool.submit(run_peer, peer, wanted if peer.complete else sample, folder)
                for peer in PEERS
            }
            peers = {name: future.result() for name, future in running.items()}
    content = table.table(ours, peers)
    readme.update(arguments.readme, "equivalence", content)
    print(content)


if __name__ == "__main__":
    main()
