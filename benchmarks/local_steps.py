"""Local steps: how long a step takes, also beside peers, and what the model comes to.

Two hosts, which are network namespaces of this machine and share its cores, train on links of
limited speed. What is measured has three parts, which can run alone.

- step_time: the mean step of a model of 10 M parameters with each choice, by one device that talks
  to nobody. Each launch goes through all links; systems take turns in rounds.
- peers: the same with PyTorch and torchft, beside tfdist's choices that do the same. The peers come
  from `side_by_side/install_peers.py`.
- loss: bytes and validation losses of the models of the examples, by synchronous training with the
  same samples. Some choices have this part only.

Each job is kept in out/local_steps.json when it ends. The next run goes on with the jobs that are
missing, and all tables are made of the jobs that are there. Namespaces need root.

    python -m benchmarks.local_steps --update --plot    # 90 minutes on an idle machine, two cores
    python -m benchmarks.local_steps --update --plot --rounds 5   # and three more rounds of steps
    python -m benchmarks.local_steps --parts step_time --minutes 20   # begins no job after that
    python -m benchmarks.local_steps --parts loss --tasks digits --seeds 1 --kept /tmp/digits.json

    # One seed of some choices, beside the jobs that the project keeps; on the machine that has
    # measured those.
    python -m benchmarks.local_steps --parts loss --seeds 1 --choices streaming-int8 \\
        streaming-terngrad --kept benchmarks/results/local_steps.json --update --plot
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.common import options
from benchmarks.common.kept import Kept
from benchmarks.local_sgd import chart, losses, plan, report, step_time
from benchmarks.local_sgd.choices import CHOICES
from benchmarks.local_sgd.found import Found
from tests.traffic import network

# What is the same in all jobs.
SETTINGS = ("backend", "steps", "rates", "blocks", "updates", "batch")
KEPT = pages.ROOT / "out" / "local_steps.json"
PICTURE = pages.ROOT / "docs" / "images" / "local_steps.png"


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=plan.PARTS, default=list(plan.PARTS))
    parser.add_argument("--backend", choices=plan.BACKENDS, default=plan.BACKENDS[0])
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--rates", nargs="+", choices=plan.RATES, default=list(plan.RATES))
    parser.add_argument("--rounds", type=int, default=2, help="of step times")
    parser.add_argument("--steps", type=int, default=64, help="that are timed on each link")
    parser.add_argument("--peers", default=str(pages.ROOT / ".venv-peers"), help="environments")
    parser.add_argument("--tasks", nargs="+", choices=plan.TASKS, default=list(plan.TASKS[:1]))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--updates", type=int, default=64, help="in a block")
    parser.add_argument("--batch", type=int, default=32, help="of all hosts together")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no job begins")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FILE", help="of all jobs")
    parser.add_argument("--fresh", action="store_true", help="forget the jobs that are kept")
    pages.add_output_options(parser, pages.LOCAL_STEPS_PAGE)
    options.add_plot(parser, PICTURE, "the losses against bytes and against seconds")
    return parser.parse_args()


def main() -> int:
    """Measures, prints the tables, and writes the files that were asked for."""
    arguments = parse_arguments()
    if reason := network.reason_against():
        sys.exit(f"The hosts cannot be made: {reason}")
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    settings["method"] = step_time.METHOD
    kept: Kept[plan.Job] = Kept(arguments.kept, settings, ("TensorFlow", "Keras"), arguments.fresh)

    def measure(job: plan.Job) -> dict[str, Any]:
        if job.part == plan.LOSS:
            return losses.measure(job, arguments)
        return step_time.measure(job.system, arguments)

    jobs = plan.jobs(arguments)
    kept.fill(
        jobs,
        arguments.minutes,
        measure,
        lambda job: job.title,
        lambda _, found: report.progress(found),
    )
    found = Found(kept.jobs())
    text = report.page(found, arguments.backend, settings)
    missing = [job for job in jobs if kept.lacks(job)]
    if missing:
        titles = "; ".join(job.title for job in missing)
        text += f"\n\nNot measured: {len(missing)} of {len(jobs)} jobs ({titles})."
    if arguments.plot and found.tasks():
        chart.draw(found, found.tasks()[0], arguments.plot)
        text += f"\n\n![Loss against bytes and seconds](images/{arguments.plot.name})"
    pages.publish(arguments, "local_steps", text, kept.content)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
