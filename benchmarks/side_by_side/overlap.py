"""Shows whether the exchange of gradients overlaps the backward pass: a chart of one step.

A bar begins when a variable's gradient is computed, and ends when its sum over the ranks has
arrived. There is overlap if bytes are sent, or bars end, before the last bar begins.

    python -m benchmarks.side_by_side.overlap                 # needs root; two minutes
    python -m benchmarks.side_by_side.overlap --rate 100mbit --work mlp --batch 64
"""

from __future__ import annotations

import bisect
import dataclasses
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.common import options
from benchmarks.side_by_side.launch import Phase, launch
from benchmarks.side_by_side.rig import LINKS, ROOT, rig
from benchmarks.side_by_side.systems import OVERLAP
from benchmarks.side_by_side.work import WORKS

matplotlib.use("Agg")
STEPS = 6
# With more variables a chart is hard to read. The variables that wait longest for sums are drawn.
BARS = 12


@dataclasses.dataclass(frozen=True)
class Step:
    """One step; times are in milliseconds since the end of the step before.

    Attributes:
        title: the title of the system.
        bars: for each variable its path, when its gradient was computed, and when its sum arrived.
        sent: times, each with the megabytes that the rank had sent in the step until then.
        end: when the step ended.
    """

    title: str
    bars: list[tuple[str, float, float]]
    sent: list[tuple[float, float]]
    end: float

    @property
    def computed(self) -> float:
        """When the last gradient was computed: the end of the backward pass."""
        return max(begin for _, begin, _ in self.bars)

    def sent_until(self, time: float) -> float:
        """The megabytes that were sent until then."""
        place = bisect.bisect_right([moment for moment, _ in self.sent], time)
        return self.sent[place - 1][1] if place else 0.0


def step_of(title: str, log: dict[str, Any]) -> Step:
    """The last but one step in a rank's notes. It contains nothing of other steps.

    Args:
        title: the title of the system.
        log: the content of a `run_overlap.Log`.
    """
    start, end = log["steps"][-3:-1]

    def within(events: list) -> dict[str, float]:
        return {path: 1e3 * (time - start) for path, time in events if start <= time <= end}

    computed, arrived = within(log["computed"]), within(log["arrived"])
    bars = [(path, computed[path], arrived[path]) for path in computed if path in arrived]
    before = max((count for time, count in log["sent"] if time <= start), default=0)
    sent = [
        (1e3 * (time - start), (count - before) / 1e6)
        for time, count in log["sent"]
        if start <= time <= end
    ]
    return Step(title, sorted(bars, key=lambda bar: bar[1]), sent, 1e3 * (end - start))


def told(step: Step) -> str:
    """The message of the chart in words."""
    within = sum(end < step.computed for _, _, end in step.bars)
    return (
        f"{step.title}: the backward pass ends after {step.computed:.0f} of {step.end:.0f} ms. "
        f"Until then {within} of {len(step.bars)} sums are there and "
        f"{step.sent_until(step.computed):.1f} of {step.sent_until(step.end):.1f} MB sent."
    )


def draw(steps: list[Step], title: str, path: Path) -> None:
    """One panel for each system."""
    figure = Figure(figsize=(8, 3 * len(steps)), layout="constrained")
    figure.suptitle(title)
    longest_step = max(step.end for step in steps)
    for axes, step in zip(figure.subplots(len(steps), 1, squeeze=False, sharex=True)[:, 0], steps):
        longest = sorted(step.bars, key=lambda bar: bar[1] - bar[2])[:BARS]
        bars = sorted(longest, key=lambda bar: -bar[1])
        names = [name for name, _, _ in bars]
        widths = [end - begin for _, begin, end in bars]
        axes.barh(names, widths, left=[begin for _, begin, _ in bars], color="C0", alpha=0.6)
        axes.axvspan(0, step.computed, color="C1", alpha=0.15, label="forward and backward pass")
        axes.set(title=step.title, xlim=(0, longest_step))
        axes.tick_params(axis="y", labelsize="x-small")
        line = axes.twinx()
        line.plot(*zip(*step.sent), color="C3", label="sent")
        line.set_ylabel("MB sent", color="C3")
        axes.legend(loc="lower right", fontsize="x-small")
    axes.set_xlabel("ms since the step began; bars: gradient computed until its sum is there")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Trains with both strategies, prints the result and draws the chart."""
    parser = options.parser(__doc__)
    parser.add_argument("--work", choices=WORKS, default="transformer")
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--rate", choices=LINKS, default="1gbit")
    default = ROOT / "benchmarks" / "results" / "overlap.png"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    steps = []
    for name, system in OVERLAP.items():
        with rig(2) as hosts:
            (rate,) = hosts.rates([arguments.rate])
            phases = [Phase(rate, STEPS)]
            place = (arguments.work, arguments.batch, hosts, phases)
            reports = launch(name, *place, peers="", checked=lambda found: None)
        steps.append(step_of(system.title.replace("`", ""), reports[0]["log"]))
    title = f"{WORKS[arguments.work].title}, 2 hosts, {LINKS[rate][1]}"
    text = "\n".join([title, *map(told, steps)])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw(steps, title, arguments.out)
    arguments.out.with_suffix(".txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
