"""How long `tfdist test` takes, which is to be under a minute with four ranks.

python -m benchmarks.cluster_check                # about four minutes
python -m benchmarks.cluster_check --strategies multi_worker --ranks 2 --rounds 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

STRATEGIES = ("multi_worker", "horovod")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[4])
    parser.add_argument("--rounds", type=int, default=3, help="jobs for each row")
    pages.add_output_options(parser, pages.CLUSTER_PAGE)
    return parser.parse_args()


def measure(strategy: str, ranks: int) -> dict:
    """The seconds of one job, from its start to its end, and the problems that it names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test.json")
        command = [sys.executable, "-m", "tfdist", "test", "-n", str(ranks), "--json", str(path)]
        began = time.perf_counter()
        subprocess.run(
            [*command, "--strategy", strategy],
            env=runner.environment(),
            stdout=subprocess.DEVNULL,
            check=False,  # a problem makes the status 1, and is in the file
        )
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "problems": json.loads(path.read_text())["problems"]}


def row(strategy: str, ranks: int, found: list[dict]) -> list[str]:
    """The cells of some jobs."""
    seconds = [job["seconds"] for job in found]
    problems = sum(len(job["problems"]) for job in found)
    times = [f"{statistics.median(seconds):.0f} s", f"{max(seconds):.0f} s"]
    return [f"`{strategy}`", str(ranks), *times, str(problems)]


def table(found: dict[tuple[str, int], list[dict]], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    text = (
        f"{arguments.rounds} jobs for each row, with all ranks on this machine, from the start of "
        f"the command to its end. {machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        f"`{options.made_by('cluster_check')}`."
    )
    head = ["strategy", "ranks", "time (median)", "time (longest)", "problems named"]
    rows = [row(*key, own) for key, own in found.items()]
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = {}
    for key in itertools.product(arguments.strategies, arguments.ranks):
        found[key] = [measure(*key) for _ in range(arguments.rounds)]
        print(f"{key[0]}, {key[1]} ranks: done", file=sys.stderr)
    measured = [[*key, own] for key, own in found.items()]
    pages.publish(arguments, "cluster_check", table(found, arguments), measured)


if __name__ == "__main__":
    main()
