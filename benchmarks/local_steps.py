"""Local steps: what they send, how long a step takes, and what the model comes to.

Two hosts, which are network namespaces of this machine and share its cores, train the models of the
examples on a link of limited speed. Training is in blocks of updates; after each block the loss on
held-out data is measured, which does not count in seconds and bytes. Each system sees the same
samples. The ratios are to synchronous training, the times also to one host that trains alone with
its part of the batch. Bytes are those that the first host's network interface has sent. Network
namespaces need root. Run it on an idle machine.

    python -m benchmarks.local_steps --update --plot     # hours
    python -m benchmarks.local_steps --tasks digits --rates 100mbit --seeds 1 --blocks 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import pages
from benchmarks.common import machine, options, tables
from benchmarks.local_steps_ranks import ALONE, SYSTEMS
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads

matplotlib.use("Agg")
HOSTS = 2
SYNCHRONOUS = "synchronous"
# How `tc` writes each rate, and how the table writes it.
LINKS = {"unlimited": "no limit", "100mbit": "100 Mbit/s", "10mbit": "10 Mbit/s"}
PICTURE = pages.ROOT / "docs" / "images" / "local_steps.png"

# By task, rate and system: what each seed has found.
Found = dict[tuple[str, str, str], list[dict[str, Any]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--backend", choices=("horovod", "multi_worker"), default="multi_worker")
    parser.add_argument("--tasks", nargs="+", choices=("char_lm", "digits"), default=["char_lm"])
    parser.add_argument("--rates", nargs="+", choices=LINKS, default=["100mbit", "10mbit"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--updates", type=int, default=96, help="in a block")
    parser.add_argument("--batch", type=int, default=32, help="of all hosts together")
    pages.add_output_options(parser, pages.LOCAL_STEPS_PAGE)
    options.add_plot(parser, PICTURE, "the losses against bytes and against seconds")
    return parser.parse_args()


def measure(task: str, rate: str, system: str, seed: int, arguments: argparse.Namespace) -> Any:
    """What `local_steps_ranks.py` finds on hosts with such a link."""
    command = [sys.executable, "-m", "benchmarks.local_steps_ranks", "--system", system]
    for name, value in (("task", task), ("seed", seed), ("blocks", arguments.blocks)):
        command += [f"--{name}", str(value)]
    command += ["--updates", str(arguments.updates), "--batch", str(arguments.batch)]
    command.append(arguments.backend)
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(HOSTS), **ALLOCATOR}
    limit = None if rate == "unlimited" else rate
    with tempfile.TemporaryDirectory() as folder, network.hosts(HOSTS, limit) as hosts:
        network.run_ranks(hosts, command, Path(folder), variables, deadline=7200)
        return json.loads(Path(folder, "found.json").read_text())


def step(runs: list[dict[str, Any]], updates: int) -> float:
    """The milliseconds of a step: the median of all blocks but the first, which traces."""
    blocks = [seconds for run in runs for seconds in run["seconds"][1:] or run["seconds"]]
    return 1000 * statistics.median(blocks) / updates


def table(found: Found, arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    head = ["task", "link", "system", "MB sent", "fewer", "ms per step", "by one device", "loss"]
    rows = []
    for task in arguments.tasks:
        for rate in arguments.rates:
            cells = {s: found[task, rate, s] for s in arguments.systems}
            for system, runs in cells.items():
                rows.append([task, LINKS[rate], system, *_numbers(system, runs, cells, arguments)])
    text = (
        f"{HOSTS} hosts, which are network namespaces of one machine; {arguments.seeds} seeds, "
        f"{arguments.blocks * arguments.updates} updates of {arguments.batch} samples; loss on "
        "held-out data after the last update, mean over the seeds, and its ratio to synchronous "
        f"training. {machine.measured_with('TensorFlow', 'Keras')}. Made by "
        "`make benchmark-local-steps`."
    )
    return "\n".join([*tables.table(head, rows, "tttn"), "", text])


def _numbers(
    system: str,
    runs: list[dict[str, Any]],
    cells: dict[str, list[dict[str, Any]]],
    arguments: argparse.Namespace,
) -> list[str]:
    def sent(runs: list[dict[str, Any]]) -> float:
        return statistics.mean(sum(run["bytes"]) for run in runs)

    def loss(runs: list[dict[str, Any]]) -> float:
        return statistics.mean(run["loss"][-1] for run in runs)

    fewer, slower, worse = "", "", ""
    if SYNCHRONOUS in cells and system != ALONE:
        fewer = f"{sent(cells[SYNCHRONOUS]) / max(1, sent(runs)):.1f} ×"
        worse = f" ({loss(runs) / loss(cells[SYNCHRONOUS]):.3f})"
    milliseconds = step(runs, arguments.updates)
    if ALONE in cells:
        slower = f"{milliseconds / step(cells[ALONE], arguments.updates):.2f}"
    return [
        f"{sent(runs) / 1e6:.2f}",
        fewer,
        f"{milliseconds:.0f}",
        slower,
        f"{loss(runs):.4f}{worse}",
    ]


def draw(found: Found, arguments: argparse.Namespace) -> None:
    """Draws the mean loss against bytes and against seconds, for the first task and rate."""
    task, rate = arguments.tasks[0], arguments.rates[0]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, what, label in zip(
        figure.subplots(1, 2), ("bytes", "seconds"), ("bytes sent by a host", "seconds")
    ):
        for number, system in enumerate(arguments.systems):
            runs = found[task, rate, system]
            if system == ALONE and what == "bytes":
                continue
            spent = [statistics.mean(block) for block in zip(*(run[what] for run in runs))]
            losses = [statistics.mean(block) for block in zip(*(run["loss"] for run in runs))]
            places = list(itertools.accumulate(spent))
            axes.plot(places, losses, label=system, marker=".", color=f"C{number}")
        axes.set(xlabel=f"{label} ({task}, {LINKS[rate]})", ylabel="loss on held-out data")
        axes.set_xscale("log")
    figure.axes[1].legend(fontsize="small")  # has all systems, as one device sends nothing
    figure.savefig(arguments.plot, dpi=120)


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    found: Found = {}
    for seed in range(arguments.seeds):
        for task in arguments.tasks:
            for rate in arguments.rates:
                for system in arguments.systems:
                    run = measure(task, rate, system, seed, arguments)
                    found.setdefault((task, rate, system), []).append(run)
                    print(task, rate, system, seed, run["loss"][-1], file=sys.stderr)
    measured = {" / ".join(key): runs for key, runs in found.items()}
    pages.publish(arguments, "local_steps", table(found, arguments), measured)
    if arguments.plot:
        draw(found, arguments)


if __name__ == "__main__":
    main()
