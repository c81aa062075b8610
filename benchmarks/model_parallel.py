"""Steps of models that are divided: a pipeline in one process, and layers in parts in two.

Each stage, and each rank, has one core; so has the one device beside them.

    python -m benchmarks.model_parallel                                # two minutes
    python -m benchmarks.model_parallel --width 64 --steps 2 --micro-batches 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from benchmarks import pages
from benchmarks.common import machine, options, tables


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--width", type=int, default=1024, help="units of each layer")
    parser.add_argument("--steps", type=int, default=20, help="of which the median is taken")
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    pages.add_output_options(parser, pages.MODEL_PARALLEL_PAGE)
    return parser.parse_args()


def measured(kind: str, ranks: int, arguments: argparse.Namespace) -> list[dict]:
    """What `model_parallel_ranks` prints: one dict for each row of the table."""
    command = [sys.executable, "-m", "benchmarks.model_parallel_ranks", kind]
    command += [str(arguments.width), str(arguments.steps)]
    if kind == "pipeline":
        command += map(str, arguments.micro_batches)
    if ranks > 1:
        launcher = ["-m", "tfdist", "run", "-n", str(ranks), "--strategy", "horovod"]
        command = [command[0], *launcher, *command[1:]]
    environ = {**os.environ, "PYTHONPATH": str(pages.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [{**one, "ranks": ranks} for one in found]


def text(found: list[dict], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    rows = []
    for one in found:
        alone = next(o for o in found if o["model"] == one["model"] and o["parts"] == 1)
        quotient = alone["milliseconds"] / one["milliseconds"]
        largest = f"{one['largest_part_bytes'] / 1e6:.1f}"
        step = f"{one['milliseconds']:.0f}"
        rows.append([one["model"], one["divided"], step, f"{quotient:.2f}", largest])
    head = ["model", "divided", "step, ms", "times as fast", "weights of the largest part, MB"]
    intro = (
        f"Layers of {arguments.width} units, batches of 256, SGD, medians of {arguments.steps} "
        "steps; each stage and each rank has one core. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-model-parallel`."
    )
    return "\n".join([intro, "", *tables.table(head, rows, "ttn")])


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse_arguments()
    found = [
        *measured("pipeline", 1, arguments),
        *measured("tensor_parallel", 1, arguments),
        *measured("tensor_parallel", 2, arguments),
    ]
    pages.publish(arguments, "model_parallel", text(found, arguments), found)


if __name__ == "__main__":
    main()
