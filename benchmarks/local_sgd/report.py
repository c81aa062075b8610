"""The tables of local steps, from what jobs have found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import machine, tables
from benchmarks.local_sgd import goals, plan
from benchmarks.local_sgd.choices import CHOICES, DENSE, DILOCO, SYNCHRONOUS
from benchmarks.local_sgd.found import Found
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.systems import OWN, SYSTEMS

# Which of tfdist's choices does what which peer does.
PAIRS = {
    "post_local_sgd": DENSE,
    "torchft_local_sgd": DENSE,
    "torchft_diloco": DILOCO,
}


def page(found: Found, backend: str, settings: Mapping[str, Any]) -> str:
    """All tables, in Markdown, each with what it shows.

    Args:
        found: what was measured.
        backend: of tfdist.
        settings: what all jobs have in common.
    """
    parts = [
        (goals.table(found, backend), "The goals. " + _OF_GOALS),
        (steps(found, backend), _OF_STEPS.format(found.parameters / 1e6, plan.BATCH)),
        (peers(found, backend), _OF_PEERS + _versions(found)),
        (losses(found), _of_losses(found, settings)),
    ]
    lines = [f"{machine.measured_with('TensorFlow', 'Keras')}, `{backend}`."]
    for rows, text in parts:
        if rows:
            lines += ["", text, "", *rows]
    return "\n".join(lines)


_OF_GOALS = (
    "Of tfdist the choice with the shortest step; below it, if it is another one, the one of those "
    f"whose loss in the character model is at most {goals.CODED_BOUND:g} of synchronous training's."
)
_OF_STEPS = (
    "The mean step, with all exchanges, of a model of {:.1f} M parameters with {} samples on each "
    "of two hosts; the median of the rounds, with the lowest and the highest. One device: on each "
    "host a process with Keras alone trains by itself, both at the same time, and no byte travels."
)
_OF_PEERS = (
    "Beside peers. With a ratio above 1 the peer's step is longer. Frameworks compute at different "
    "speeds, so the last columns have what a step takes longer than on one device of the same "
    "framework. "
)


def steps(found: Found, backend: str) -> list[str]:
    """A table of step times."""
    alone = plan.ALONE[OWN]
    titles = {alone: "one device"}
    titles |= {plan.own(backend, choice): CHOICES[choice].title for choice in CHOICES}
    rows = []
    for rate in found.rates():
        for name, title in titles.items():
            seconds, ratios = found.seconds(name, rate), found.ratios(name, alone, rate)
            if seconds:
                row = [LINKS[rate].title, title, f"{found.step_bytes(name, rate) / 1e6:.3f}"]
                row += [_milliseconds(seconds)]
                rows.append([*row, tables.with_range(ratios, ".3f") if ratios else "–"])
    head = ["link", "system", "MB per step", "ms per step", "by one device"]
    return tables.table(head, rows, "ttn")


def peers(found: Found, backend: str) -> list[str]:
    """A table of step times beside those of peers."""
    rows = []
    for rate in found.rates():
        for peer, choice in PAIRS.items():
            ours = plan.own(backend, choice)
            ratios = found.ratios(peer, ours, rate)
            if not ratios:
                continue
            times = [found.seconds(name, rate) for name in (ours, peer)]
            added = [found.added(name, rate) for name in (ours, peer)]
            row = [LINKS[rate].title, CHOICES[choice].title, SYSTEMS[peer].title]
            row += [*map(_milliseconds, times), tables.with_range(ratios, ".3f")]
            rows.append([*row, *(_milliseconds(values) if values else "–" for values in added)])
    head = ["link", "tfdist", "peer", "tfdist, ms", "peer, ms", "peer by tfdist"]
    return tables.table([*head, "tfdist adds, ms", "peer adds, ms"], rows, "tttn")


def losses(found: Found) -> list[str]:
    """A table of losses and bytes."""
    rows = []
    for task in found.tasks():
        for choice, (title, *_) in CHOICES.items():
            runs = found.runs(task, choice)
            if not runs:
                continue
            fewer, ratios = found.fewer(task, choice), found.loss_ratios(task, choice)
            row = [task, title, f"{found.sent(task, choice) / 1e6:.2f}"]
            row += ["–" if fewer is None else f"{fewer:.1f} ×"]
            row += [tables.with_range([run["loss"][-1] for run in runs], ".4f")]
            rows.append([*row, tables.with_range(ratios, ".3f") if ratios else "–"])
    head = ["task", "system", "MB sent", "fewer", "loss", f"by {CHOICES[SYNCHRONOUS].title}"]
    return tables.table(head, rows, "ttn")


def _of_losses(found: Found, settings: Mapping[str, Any]) -> str:
    seeds = max((len(found.runs(t, c)) for t in found.tasks() for c in CHOICES), default=0)
    return (
        f"The loss on held-out data after {settings['blocks'] * settings['updates']} updates of "
        f"{settings['batch']} samples, which are the same for all; the median of "
        f"{seeds} seeds, with the lowest and the highest. Bytes are those that a "
        "host's interface has sent in the whole training."
    )


def _versions(found: Found) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items())) + "."


def _milliseconds(seconds: list[float]) -> str:
    return tables.with_range([1000 * value for value in seconds], ".1f")


def progress(found: Mapping[str, Any]) -> str:
    """What one job has found, in a line."""
    if "loss" in found:
        return f"  loss {found['loss'][-1]:.4f}, {sum(found['bytes']) / 1e6:.2f} MB"
    times = [f"{rate} {1000 * f['seconds']:.1f}" for rate, f in found["rates"].items()]
    return f"  ms per step: {', '.join(times)}"
