"""Time to sum 100 MB of gradients over two processes: TensorFlow, Horovod and tfdist on both.

Two processes on this machine meet over the loopback device. They are started as the users of each
system would start them:

- TensorFlow: `ReplicaContext.all_reduce` of all gradients under
  `tf.distribute.MultiWorkerMirroredStrategy`, which is what a Keras optimizer calls; TF_CONFIG is
  set by hand;
- TensorFlow in tfdist run: the same in the environment that `tfdist run` makes;
- tfdist multi_worker: what `tfdist.DistributedOptimizer` does on TensorFlow: pack, all-reduce,
  unpack;
- raw Horovod: `hvd.grouped_allreduce` of the gradients;
- tfdist horovod: what `tfdist.DistributedOptimizer` does on Horovod.

The jobs follow each other in blocks, forwards and backwards in turn (ABBA). Both uses of Horovod
take turns in the same processes. For each block, the medians of its rounds give one ratio,
tfdist / peer. The table has the median of these ratios, with the lowest and the highest. Below 1,
tfdist is faster.

    python -m benchmarks.exchange                         # about ten minutes on an idle machine
    python -m benchmarks.exchange --tensors 25 --rounds 5 --blocks 2 --megabytes 10
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from tfdist.launcher.ranks import ALLOCATOR, environments

TENSORFLOW, IN_RUN = "TensorFlow", "TensorFlow in tfdist run"
SYSTEMS = [TENSORFLOW, IN_RUN, "tfdist multi_worker", "raw Horovod", "tfdist horovod"]
# Systems of tfdist, each with the peer that it is compared with.
PAIRS = [
    ("tfdist multi_worker", TENSORFLOW),
    ("tfdist multi_worker", IN_RUN),
    ("tfdist horovod", "raw Horovod"),
]

# Seconds of a block's rounds, by number of tensors and system.
Block = dict[str, dict[str, list[float]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 25, 1000])
    parser.add_argument("--megabytes", type=float, default=100.0, help="of float32 in all")
    parser.add_argument("--rounds", type=int, default=10, help="of each block")
    parser.add_argument("--blocks", type=int, default=6)
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    return parser.parse_args()


def by_hand(command: list[str]) -> None:
    """Runs `command` twice, with TF_CONFIG, and with the default allocator of the system.

    The number of threads is that of `tfdist run`, so that threads do not make the difference.
    """
    path = {"PYTHONPATH": runner.environment()["PYTHONPATH"]}
    with environments("multi_worker", 2) as places:
        ranks = []
        for place in places:
            environment = {name: v for name, v in place.items() if name not in ALLOCATOR}
            ranks.append(subprocess.Popen(command, env=environment | path))
        if any([rank.wait() for rank in ranks]):
            sys.exit(f"{' '.join(command)} failed.")


def measure_job(name: str, arguments: argparse.Namespace) -> Block:
    """What the two processes of one job measure. Both uses of Horovod are one job."""
    together = {"raw Horovod": ["raw Horovod", "tfdist horovod"], IN_RUN: [TENSORFLOW]}
    given = ["--systems", *together.get(name, [name]), "--rounds", arguments.rounds]
    given += ["--megabytes", arguments.megabytes, "--tensors", *arguments.tensors]
    start = runner.launched(2, "horovod" if "Horovod" in name else "multi_worker")
    if name == TENSORFLOW:
        start = by_hand
    times = runner.written("exchange_ranks", *given, start=start)
    if name == IN_RUN:
        return {number: {IN_RUN: found[TENSORFLOW]} for number, found in times.items()}
    return times


def measure(arguments: argparse.Namespace) -> list[Block]:
    """All blocks."""
    jobs = SYSTEMS[:-1]
    blocks: list[Block] = [
        {str(number): {} for number in arguments.tensors} for _ in range(arguments.blocks)
    ]
    for index, name in runner.in_turn(jobs, arguments.blocks):
        for number, seconds in measure_job(name, arguments).items():
            blocks[index][number].update(seconds)
    return blocks


def median(blocks: list[Block], number: str, name: str) -> float:
    """The median of all rounds of all blocks, in seconds."""
    return statistics.median(value for block in blocks for value in block[number][name])


def ratio(blocks: list[Block], number: str, ours: str, theirs: str) -> str:
    """The median of the blocks' ratios, the lowest and the highest."""
    ratios = [
        statistics.median(block[number][ours]) / statistics.median(block[number][theirs])
        for block in blocks
    ]
    return tables.with_range(ratios, ".2f")


def table(blocks: list[Block], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    head = ["tensors", *(f"{name}, ms" for name in SYSTEMS)]
    head += [f"{ours} / {peer}" for ours, peer in PAIRS]
    text = (
        f"{arguments.megabytes:g} MB of float32 gradients, 2 processes over loopback; medians of "
        f"{len(blocks)} blocks of {arguments.rounds} rounds; in brackets a block's lowest and "
        f"highest ratio. {machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        "`make benchmark-exchange`."
    )
    rows = []
    for number in blocks[0]:
        cells = [f"{1000 * median(blocks, number, name):.0f}" for name in SYSTEMS]
        cells += [ratio(blocks, number, *pair) for pair in PAIRS]
        rows.append([number, *cells])
    return "\n".join([text, "", *tables.table(head, rows)])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    blocks = measure(arguments)
    pages.publish(arguments, "exchange", table(blocks, arguments), blocks)


if __name__ == "__main__":
    main()
