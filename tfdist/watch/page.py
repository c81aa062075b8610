"""The report: one HTML file that needs no network and no script."""

from __future__ import annotations

import html
import importlib.resources
import os
import pathlib
import string
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import SupportsFloat

from tfdist.watch import charts
from tfdist.watch.numbers import Epoch, RankNumbers, Run

_PARTS = {
    "compute": "computing",
    "exchange": "exchange that is not hidden",
    "update": "update",
    "data": "waiting for data, with the call",
    "between": "between steps",
    "rest": "the rest of the step",
}
_SHORT = {"exchange": "exchange", "data": "data", "between": "between", "rest": "rest"}
_STALENESS = ("staleness", "staleness_max", "dropped", "dropped_parts", "waits", "lost_updates")
_MEMBERS = ("replicas", "recoveries", "lost_residuals")
_MOST_RANKS = 64


def write(run: Run, path: str | os.PathLike) -> None:
    """Writes the report of `run`; a reader sees the old file or the new one, never a part.

    Raises:
        OSError: when it cannot be written.
    """
    path = pathlib.Path(os.path.realpath(path))
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(as_html(run))
        os.chmod(partial, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(partial, path)
    finally:
        pathlib.Path(partial).unlink(missing_ok=True)


def as_html(run: Run) -> str:
    """The report of `run`."""
    template = (importlib.resources.files("tfdist.watch") / "page.html").read_text("utf-8")
    sections = [_metrics(run)]
    if run.epochs:
        sections += [_times(run), _bytes(run), _staleness(run), _members(run)]
        sections += [_memory(run), _network(run)]
    sections += [_environment(run), _left_out(run)]
    return string.Template(template).substitute(
        title=html.escape(run.title),
        state=html.escape(_state(run)),
        found="".join(f"<li>{html.escape(text)}</li>" for text in _found(run)),
        sections="\n".join(filter(None, sections)),
    )


def _state(run: Run) -> str:
    def clock(seconds: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

    count, wanted = len(run.epochs), run.wanted
    epochs = f"{count} epoch{'' if count == 1 else 's'}"
    if wanted is not None and not run.has_ended:
        epochs = f"{count} of {wanted} epochs"
    last = run.epochs[-1].ended if run.epochs else run.began
    if run.has_ended:
        state = f"Ended after {_duration(last - run.began)}."
    else:
        state = f"Had not ended when this was written, at {clock(last)}."
    return f"{epochs}, begun at {clock(run.began)}. {state}"


def _found(run: Run) -> Iterator[str]:
    """What is worth knowing of the last epoch."""
    if not run.epochs:
        yield "The first epoch has not ended yet."
        return
    last = run.epochs[-1]
    slowest, step = last.slowest(), last.step_seconds()
    if slowest is not None and step is not None:
        cost = slowest.waiting * step
        yield f"{slowest} That is {_milliseconds(cost)} of {_milliseconds(step)}."
    parts = last.mean_parts()
    if step is not None and parts:
        largest = max(parts, key=lambda name: parts[name])
        share = parts[largest] / step
        yield f"The largest part of a step is {_PARTS[largest]}: {share:.0%}, on average."
    if last.traffic is not None and last.traffic.sent != last.traffic.dense:
        ratio = last.traffic.dense / max(1, last.traffic.sent)
        yield (
            f"A replica sends {_size(last.traffic.sent)} for an update; without compression it "
            f"would be {_size(last.traffic.dense)}, {ratio:.1f} times as much."
        )
    samples = [(r.samples, r.seconds) for r in last.measured().values() if r.samples]
    if samples:
        speed = sum(count / seconds for count, seconds in samples)
        yield f"{speed:,.0f} samples per second, by all ranks together."


def _section(title: str, note: str, *content: str) -> str:
    text = "".join(content)
    note = f'<p class="soft">{html.escape(note)}</p>' if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{note}{text}</section>" if text else ""


def _series(run: Run, name: str) -> charts.Points:
    values = [(epoch.number + 1, _as_number(epoch.logs.get(name))) for epoch in run.epochs]
    return [(number, value) for number, value in values if value is not None]


def _as_number(value: SupportsFloat | None) -> float | None:
    """A point of a curve; None for other things in logs, such as texts, or an array of classes."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _number(value: float) -> str:
    return f"{value:.4g}"


def _curves(run: Run, names: Mapping[str, None]) -> str:
    """A chart for each of the logs; that of validation is in the chart of the same name."""
    found = []
    for name in names:
        if name.startswith("val_") and name[4:] in names:
            continue
        pair = {key: _series(run, key) for key in (name, f"val_{name}")}
        pair = {key: points for key, points in pair.items() if points}
        if pair:
            found.append(charts.lines(name, pair, _number))
    return f'<div class="charts">{"".join(found)}</div>' if found else ""


def _metrics(run: Run) -> str:
    own = {key for epoch in run.epochs for key in epoch.history()} | {*_STALENESS, *_MEMBERS}
    names = dict.fromkeys(key for epoch in run.epochs for key in epoch.logs if key not in own)
    return _section("Loss and metrics", "", _curves(run, names))


def _times(run: Run) -> str:
    ranks = run.epochs[-1].measured()
    if not ranks:
        note = "An epoch of two calls of the step or more is needed: the first call is traced."
        return _section("Where a step's time goes", note, "<p></p>")
    names = dict.fromkeys(name for rank in ranks.values() for name in rank.parts())
    named = {key: name for key, name in _PARTS.items() if key in names}
    shown = dict(list(ranks.items())[:_MOST_RANKS])
    rows = {f"rank {number}": rank.parts() for number, rank in shown.items()}
    head = ["rank", *(_SHORT.get(key, key) for key in named), "step"]
    cells = [
        [
            str(number),
            *(_short(1e3 * rank.parts().get(key, 0.0)) for key in named),
            _short(1e3 * sum(rank.parts().values())),
        ]
        for number, rank in shown.items()
    ]
    means = {
        _PARTS[key]: [
            (epoch.number + 1, 1e3 * parts[key])
            for epoch in run.epochs
            if key in (parts := epoch.mean_parts())
        ]
        for key in named
    }
    title = "a step, mean of the ranks"
    by_epoch = [charts.lines(title, means, lambda ms: f"{ms:.3g} ms", from_zero=True)]
    waits = [(e.number + 1, 100 * s.waiting) for e in run.epochs if (s := e.slowest())]
    if waits:
        waiting = {"of the step": waits}
        title = "others wait for the slowest rank"
        by_epoch.append(charts.lines(title, waiting, lambda share: f"{share:.3g} %", True))
    more = f" Of {len(ranks)} ranks the first {_MOST_RANKS} are shown." if shown != ranks else ""
    note = f"A step of each rank in ms, mean of epoch {run.epochs[-1].number + 1}.{more}"
    return _section(
        "Where a step's time goes",
        note,
        charts.bars(rows, named, _milliseconds),
        charts.table(head, cells),
        f'<div class="charts">{"".join(by_epoch)}</div>',
    )


def _bytes(run: Run) -> str:
    traffic = run.epochs[-1].traffic
    if traffic is None:
        return ""
    rows = {
        "sent": {"bytes": float(traffic.sent)},
        "as dense gradients": {"bytes": float(traffic.dense)},
    }
    note = "What a replica hands to the exchange for an update."
    return _section("Bytes", note, charts.bars(rows, {"bytes": "bytes"}, _size))


def _staleness(run: Run) -> str:
    names = [name for name in _STALENESS if any(name in epoch.logs for epoch in run.epochs)]
    workers = run.epochs[-1].workers
    rows = [
        [str(index), f"{own.updates}", f"{own.staleness:.2f}", f"{own.dropped}", f"{own.waits}"]
        for index, own in sorted(workers.items())
    ]
    head = ["worker", "updates", "staleness", "dropped", "waits"]
    found = charts.table(head, rows) if rows else ""
    return _section("Staleness", "", _curves(run, dict.fromkeys(names)), found)


def _members(run: Run) -> str:
    names = [name for name in _MEMBERS if any(name in epoch.logs for epoch in run.epochs)]
    return _section("Members", "", _curves(run, dict.fromkeys(names)))


def _ranks(run: Run) -> Iterator[tuple[int, list[tuple[Epoch, RankNumbers]]]]:
    """For each of the first ranks the epochs in which its numbers are known."""
    for number in range(min(_MOST_RANKS, max(len(epoch.ranks) for epoch in run.epochs))):
        known = [(e, e.ranks[number]) for e in run.epochs if number < len(e.ranks)]
        yield number, [(epoch, rank) for epoch, rank in known if rank is not None]


def _memory(run: Run) -> str:
    used, peak, device = (
        {
            f"rank {number}": [
                (epoch.number + 1, float(value))
                for epoch, rank in known
                if (value := getattr(rank, name))
            ]
            for number, known in _ranks(run)
        }
        for name in ("memory", "peak_memory", "device_memory")
    )
    found = [charts.lines("in use at the end of the epoch", used, _size)]
    found.append(charts.lines("most so far", peak, _size))
    if any(device.values()):
        found.append(charts.lines("GPUs, most so far", device, _size))
    return _section("Memory", "", f'<div class="charts">{"".join(found)}</div>')


def _network(run: Run) -> str:
    hosts: dict[str, RankNumbers] = {}
    for rank in run.epochs[-1].ranks:
        if rank is not None and rank.sent is not None:
            hosts.setdefault(rank.host, rank)
    rows = [
        [host, _size(rank.sent or 0), _size(rank.received or 0)] for host, rank in hosts.items()
    ]
    note = (
        f"By all programs of each machine in epoch {run.epochs[-1].number + 1}, over all network "
        "interfaces with the machine's own loopback."
    )
    return _section("Link", note, charts.table(["machine", "sent", "received"], rows) * bool(rows))


def _environment(run: Run) -> str:
    pairs = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in run.environment.items()
    )
    return _section("Environment", "", f"<dl>{pairs}</dl>")


def _left_out(run: Run) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in run.left_out)
    return _section("Not in this report", "", f"<ul>{items}</ul>" * bool(items))


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.2f}" if milliseconds < 99 else f"{milliseconds:.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
