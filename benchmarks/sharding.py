"""Memory, traffic and time of sharded training, beside the same strategy without `sharding`.

A chain of equal Dense layers, or a Transformer with a vocabulary of 50,000 words, is trained with
Adam. Each round launches every mode once, in turn, in a network of its own. Memory is the peak of a
rank's resident memory while it trains, above what the process needs before it has a model; the rank
with the most counts. Bytes are what a rank sends in a step over the loopback device, or over its
link if each rank is a host of its own, headers too. Networks of their own need root.

    python -m benchmarks.sharding --plot              # an hour
    python -m benchmarks.sharding --model words --accumulation-steps 1
    python -m benchmarks.sharding --rate 1gbit --ranks 2 --accumulation-steps 1
    python -m benchmarks.sharding --lean --accumulation-steps 1
    python -m benchmarks.sharding --strategies horovod --ranks 2 --layers 4 --width 512 --rounds 1
    python -m benchmarks.sharding --measured FILE --plot   # from what `--json FILE` has written
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import pages, sharding_chart
from benchmarks.common import machine, options, runner, tables
from benchmarks.sharding_ranks import BATCH, CHAIN, MODELS, WORDS_BATCH
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.work import CONTEXT, WORKS
from tfdist.options import SHARDINGS

MODES = ("none", *SHARDINGS)
LAUNCHED = ("multi_worker", "horovod")
PYTORCH = "pytorch"
# What PyTorch calls the modes.
OF_PYTORCH = {
    "none": "DDP",
    "optimizer": "ZeroRedundancyOptimizer",
    "gradients": "FSDP2, weights stay whole",
    "parameters": "FSDP2",
}
# Seconds of a launch on hosts.
DEADLINE = 600
PICTURE = pages.ROOT / "docs" / "images" / "sharding.png"
# What is measured of each job, by its strategy, number of ranks, micro-batches and mode.
Job = tuple[str, int, int, str]
Found = dict[Job, list[dict[str, float]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument(
        "--strategies", nargs="+", choices=(*LAUNCHED, PYTORCH), default=["horovod", PYTORCH]
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--accumulation-steps", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--model", choices=MODELS, default=CHAIN)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rate", choices=LINKS, help="of the links of hosts; default: loopback without a limit"
    )
    parser.add_argument(
        "--lean",
        action="store_true",
        help="free memory goes back to the system at once, and TensorFlow runs without oneDNN",
    )
    parser.add_argument(
        "--peers", default=".venv-peers", help="where `make peers` has installed PyTorch"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="measure nothing: FILE is of `--json`"
    )
    options.add_plot(parser, PICTURE, "the memory of a rank by the number of ranks")
    pages.add_output_options(parser, pages.SHARDING_PAGE)
    arguments = parser.parse_args()
    if arguments.lean and (arguments.rate or arguments.model != CHAIN):
        parser.error("--lean is for the chain of Dense layers, without --rate.")
    return arguments


def measure(job: Job, arguments: argparse.Namespace) -> dict[str, float]:
    """What `sharding_ranks.py` measures in one launch."""
    strategy, ranks, accumulation_steps, mode = job
    sizes = ["--layers", arguments.layers, "--width", arguments.width, "--steps", arguments.steps]
    sizes += ["--model", arguments.model]
    if strategy == PYTORCH:
        batch = BATCH if arguments.model == CHAIN else WORDS_BATCH
        given = ["--sharding", mode, "--batch", batch, *sizes]
        python = f"{arguments.peers}-torch/bin/python"
        start = runner.torchrun(python, ranks)
        if arguments.rate:
            start = runner.on_hosts(ranks, arguments.rate, DEADLINE, python)
        return runner.written("sharding_torch", *given, start=start)
    given = ["--strategy", strategy, "--sharding", mode, *sizes]
    given += ["--accumulation-steps", accumulation_steps]
    start = runner.launched(ranks, strategy, alone=True)
    if arguments.rate:
        start = runner.on_hosts(ranks, arguments.rate, DEADLINE)
    return runner.written("sharding_ranks", *given, start=start)


def names_of(strategy: str, mode: str) -> tuple[str, str]:
    """What a strategy and a mode of `sharding` are called in the table."""
    if strategy == PYTORCH:
        return "PyTorch, Gloo", OF_PYTORCH[mode]
    return f"`{strategy}`", "None" if mode == "none" else f'"{mode}"'


def lines(found: Found) -> dict[str, dict[str, dict[int, float]]]:
    """What is drawn: the memory with the fewest micro-batches."""
    fewest = min(steps for _, _, steps, _ in found)
    drawn: dict[str, dict[str, dict[int, float]]] = {}
    for (strategy, ranks, steps, mode), measured in found.items():
        if steps == fewest:
            system, called = names_of(strategy, mode)
            of_mode = drawn.setdefault(system.strip("`"), {}).setdefault(called, {})
            of_mode[ranks] = statistics.median(m["peak"] / m["parameters"] for m in measured)
    return drawn


def table(found: Found, arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    first = next(iter(found.values()))[0]
    head = ["strategy", "ranks", "micro-batches", "`sharding`", "made", "bytes per weight"]
    head += ["of None", "sent, MB per step", "ms per step", "of None"]
    link = "loopback without a limit"
    if arguments.rate:
        carried = LINKS[arguments.rate].title
        link = f"each rank is a host, whose link carries {carried} in both directions"
    model = f"{arguments.layers} Dense layers of {arguments.width} units"
    if arguments.model != CHAIN:
        model = f"A {WORKS[arguments.model].title}, {WORDS_BATCH} texts of {CONTEXT}"
    if arguments.lean:
        settings = (f"`{name}={value}`" for name, value in runner.FREE_MEMORY_GOES_BACK.items())
        link += f"; all jobs with {', '.join(settings)}"
    launches = "One launch of each"
    if arguments.rounds > 1:
        launches = f"Medians of {arguments.rounds} launches, and of their ratios to `None`"
    text = (
        f"{model}, Adam, "
        f"{first['parameters'] / 1e6:.1f} M weights; {link}. Bytes per weight: the peak of a "
        "rank's memory while it trains, above the process without a model. A step is an update; "
        f"in each launch the median of {arguments.steps - 1}. "
        f"{launches}. All ranks share this machine. "
        f"{machine.measured_with('TensorFlow', 'Keras', 'Horovod')}. "
        "Made by `make benchmark-sharding`."
    )
    rows = []
    for (strategy, ranks, steps, mode), measured in found.items():
        plain = found[strategy, ranks, steps, "none"]

        def ratio(name: str, measured: Any = measured, plain: Any = plain) -> str:
            return f"{statistics.median(m[name] / p[name] for m, p in zip(measured, plain)):.2f}"

        middle = {name: statistics.median(m[name] for m in measured) for name in first}
        name, called = names_of(strategy, mode)
        row = [name, str(ranks), str(steps), called]
        row += [f"{middle[what] / first['parameters']:.1f}" for what in ("making", "peak")]
        row += [ratio("peak")]
        row += [f"{middle['sent'] / 1e6:.0f}", f"{1000 * middle['seconds']:.0f}", ratio("seconds")]
        rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows, "tnntn")])


def measure_all(arguments: argparse.Namespace) -> Found:
    """Measures all jobs in turn; what was found by job, in the order of the table."""
    every = itertools.product(arguments.strategies, arguments.ranks, arguments.accumulation_steps)
    kinds = [kind for kind in every if kind[0] != PYTORCH or kind[2] == 1]
    found: Found = {}
    for kind in kinds:
        for _, mode in runner.in_turn(MODES, arguments.rounds):
            job = (*kind, mode)
            found.setdefault(job, []).append(measure(job, arguments))
            print(*job, found[job][-1], file=sys.stderr)
    return {job: found[job] for job in sorted(found, key=lambda j: (*j[:3], MODES.index(j[3])))}


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    if arguments.lean:
        os.environ.update(runner.FREE_MEMORY_GOES_BACK)
    if arguments.measured is None:
        found = measure_all(arguments)
    else:
        kept = json.loads(arguments.measured.read_text())
        found = {(name, ranks, steps, mode): made for name, ranks, steps, mode, made in kept}
    measured = [[*job, rounds] for job, rounds in found.items()]
    name = "sharding_on_a_link" if arguments.rate else "sharding"
    name += "" if arguments.model == CHAIN else f"_{arguments.model}"
    name += "_lean" if arguments.lean else ""
    text = table(found, arguments)
    if arguments.plot:
        sharding_chart.draw(lines(found), arguments.plot)
        text += f"\n\n![{sharding_chart.TITLE}](images/{arguments.plot.name})"
    pages.publish(arguments, name, text, measured)


if __name__ == "__main__":
    main()
