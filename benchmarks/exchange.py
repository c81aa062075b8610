"""Time to sum 100 MB of gradients over two processes: TensorFlow, Horovod and tfdist on both.

Two processes on this machine meet over the loopback device. Both know TF_CONFIG and Horovod's
rendezvous, so all four exchanges run in the same processes, in turn (ABBA), on the same gradients:

- TensorFlow: `ReplicaContext.all_reduce` of all gradients under MultiWorkerMirrored with
  TensorFlow's default options, which is what a Keras optimizer calls;
- tfdist multi_worker: what `tfdist.DistributedOptimizer` does there: pack, all-reduce, unpack;
- raw Horovod: `hvd.grouped_allreduce` of the gradients;
- tfdist horovod: what `tfdist.DistributedOptimizer` does there.

A ratio is tfdist / peer of the same round; the median of the rounds' ratios is given, with their
quartiles. Below 1, tfdist is faster.

    python benchmarks/exchange.py                         # about three minutes on an idle machine
    python benchmarks/exchange.py --tensors 25 --rounds 5 --megabytes 10
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import readme
from tfdist.cluster.addresses import free_ports

RANKS_SCRIPT = Path(__file__).with_name("exchange_ranks.py")
# Each of ours, and the peer that it is compared with.
PAIRS = {"tfdist multi_worker": "TensorFlow", "tfdist horovod": "raw Horovod"}


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 25, 1000])
    parser.add_argument("--megabytes", type=float, default=100.0, help="of float32 in all")
    parser.add_argument("--rounds", type=int, default=30)
    readme.add_output_options(parser)
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds by number of tensors and system, one per round, as rank 0 saw them."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "times.json")
        command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", "horovod"]
        command += [str(RANKS_SCRIPT), str(result), str(arguments.megabytes)]
        command += [str(arguments.rounds), *map(str, arguments.tensors)]
        ports = ",".join(str(port) for port in free_ports(2))
        subprocess.run(command, env=os.environ | {"EXCHANGE_PORTS": ports}, check=True)
        return json.loads(result.read_text())


def ratio(ours: list[float], theirs: list[float]) -> str:
    """The median of the rounds' ratios, and their quartiles."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def table(times: dict[str, dict[str, list[float]]], megabytes: float) -> str:
    """The Markdown text between the README's markers."""
    systems = [name for pair in PAIRS.items() for name in reversed(pair)]
    head = ["tensors", *(f"{name}, ms" for name in systems)]
    head += [f"{ours} / {peer}" for ours, peer in PAIRS.items()]
    lines = [
        f"{megabytes:g} MB of float32 gradients, 2 processes over loopback, medians; the ratios' "
        "quartiles in brackets. "
        f"Python {platform.python_version()}, TensorFlow {version('tensorflow')}, "
        f"Horovod {version('horovod')}, tfdist {version('tfdist')}, {os.cpu_count()} cores. "
        "Made by `make benchmark-exchange`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for tensors, by_system in times.items():
        cells = [f"{1000 * statistics.median(by_system[name]):.0f}" for name in systems]
        cells += [ratio(by_system[ours], by_system[peer]) for ours, peer in PAIRS.items()]
        lines.append(f"| {' | '.join([tensors, *cells])} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table, and writes what was asked for."""
    arguments = parse_arguments()
    times = measure(arguments)
    content = table(times, arguments.megabytes)
    print(content)
    if arguments.json:
        arguments.json.write_text(json.dumps(times, indent=1))
    if arguments.update_readme:
        readme.update(arguments.update_readme, "exchange", content)


if __name__ == "__main__":
    main()
