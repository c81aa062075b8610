"""Tables and charts of a JSON file of results.

python -m benchmarks.side_by_side.report benchmarks/results/side_by_side-quick.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import tables
from benchmarks.side_by_side import best, chart, goals, scaling, targets, variables
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group, groups
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS


def milliseconds(seconds: list[float]) -> str:
    """The median, and the quartiles in brackets."""
    return tables.with_quartiles([1000 * value for value in seconds], ".0f")


def rounds(group: Group) -> str:
    """How many rounds there were, and which systems ran in fewer."""
    text = f"{group.rounds} round{'s' * (group.rounds > 1)}"
    worked = [name for name in group.systems if name not in group.errors]
    for count in sorted({group.rounds_of(name) for name in worked} - {group.rounds}):
        names = [SYSTEMS[name].title for name in worked if group.rounds_of(name) == count]
        text += f" ({count} with: {'; '.join(names)})"
    return text


def times(group: Group) -> list[str]:
    """A table of step times, with the samples per second of all ranks."""
    head = ["system"]
    for rate in group.rates:
        head += [f"{LINKS[rate][1]}, ms", "samples/s"]
    rows = []
    for name in group.systems:
        system = SYSTEMS[name]
        row = [system.title]
        if name in group.errors:
            row += ["–"] * 2 * len(group.rates)
            row[1] = f"crashes: `{group.errors[name]}`"
        for rate in group.rates if name not in group.errors else ():
            # On one host there is no link, so the figure holds for all links.
            seconds = group.seconds(name, rate if system.exchanges else None)
            if not seconds:
                row += ["–", "–"]
                continue
            samples = group.batch * (1 if system.single else group.hosts)
            speed = f"{samples / statistics.median(seconds):.0f}" if system.trains else "–"
            row += [milliseconds(seconds), speed]
        rows.append(row)
    return tables.table(head, rows)


def traffic(group: Group) -> list[str]:
    """A table of bytes, shares of the ring's bound and memory."""
    head = ["system", "MB per step and rank"]
    head += [f"ring bound, {LINKS[rate][1]}" for rate in group.limited]
    head.append("peak memory, MB")
    rows = []
    for name in group.systems:
        if name in group.errors or not SYSTEMS[name].exchanges:
            continue
        slowest = [rate for rate in group.rates if group.sent(name, rate)][-1]
        sent = statistics.median(group.sent(name, slowest))
        row = [SYSTEMS[name].title, f"{sent / 1e6:.2f}"]
        for rate in group.limited:
            share = group.ring_share(name, rate) if group.sent(name, rate) else None
            row.append("–" if share is None else f"{100 * share:.0f} %")
        row.append(f"{statistics.median(group.peaks(name)) / 1e6:.0f}")
        rows.append(row)
    return tables.table(head, rows)


def section(group: Group) -> list[str]:
    """The text of one group."""
    task = WORKS[group.work]
    lines = ["", f"## {task.title}, {group.hosts} hosts, {group.batch} samples per rank", ""]
    lines.append(f"{group.parameters / 1e6:.2f} M parameters; {rounds(group)}.")
    if group.loopback:
        lines.append(f"Over loopback, as {group.loopback}.")
    for rate in group.limited:
        carried = group.links(rate)
        if not carried:  # The links of your own hosts are not measured.
            continue
        lines.append(
            f"Links of {LINKS[rate][1]} carried {statistics.median(carried) / 1e6:.1f} MB/s "
            f"({min(carried) / 1e6:.1f}–{max(carried) / 1e6:.1f})."
        )
    parts = [times(group), traffic(group)]
    if soon := targets.table(group):
        parts += [soon, [targets.text(group)]]
    parts += [goals.table(group), goals.ring_table(group), targets.goals(group), best.table(group)]
    return [*lines, *itertools.chain.from_iterable(["", *part] for part in parts if part)]


def machine_text(result: dict[str, Any]) -> str:
    """What the figures were measured with, and what the figures mean."""
    machine = result["machine"]
    vectors = f" ({machine['vectors']})" if machine.get("vectors") else ""
    used = ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
    return (
        f"{machine['cores']} cores of {machine['processor']}{vectors}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {used}. "
        "Step times are medians with quartiles over the steps of all rounds, of the slowest rank."
    )


def page(result: dict[str, Any], image: str | None) -> str:
    """All tables, in Markdown, with the chart `image` if there is one."""
    lines = [
        f"# Side by side: {result['plan']}",
        "",
        f"{machine_text(result)} "
        "Share of the ring bound: 2(N−1)/N·M/B divided by what a step takes longer than on one "
        "device of the same framework; more than 100 % where computing hides a part of it.",
    ]
    if took := sum(run.get("took", 0) for run in result["runs"]):
        lines[-1] += f" All launches together took {took / 60:.0f} minutes."
    if image is not None:
        lines += ["", f"![Step time by bandwidth]({image})"]
    found = groups(result["runs"])
    for group in found:
        lines += section(group)
    cores = None if result.get("own_hosts") else result["machine"]["cores"]
    lines += scaling.sections(found, cores)
    lines += variables.section(found)
    return "\n".join(lines) + "\n"


def publish(path: Path) -> None:
    """Writes the page and the chart beside the file of results, and prints the page.

    There is no chart where no link was limited.
    """
    result = json.loads(path.read_text())
    image = path.with_suffix(".png")
    limited = [group for group in groups(result["runs"]) if group.limited]
    if limited:
        chart.draw(limited, image)
    text = page(result, image.name if limited else None)
    path.with_suffix(".md").write_text(text)
    print(text)


def main() -> None:
    """Publishes what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    publish(parser.parse_args().results)


if __name__ == "__main__":
    main()
