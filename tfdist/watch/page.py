"""The report: one HTML file that needs no network and no script."""

from __future__ import annotations

import html
import importlib.resources
import os
import string
from collections.abc import Iterator, Mapping, Sequence

from tfdist.watch import charts, curves, summary, texts
from tfdist.watch.files import write_whole
from tfdist.watch.numbers import Epoch, RankNumbers, Run
from tfdist.watch.summary import PARTS

_SHORT = {"exchange": "exchange", "data": "data", "between": "between", "rest": "rest"}
_MOST_RANKS = 64


def write(run: Run, path: str | os.PathLike) -> None:
    """Writes the report of `run`; a reader sees the old file or the new one, never a part.

    Raises:
        OSError: when it cannot be written.
    """
    write_whole(path, as_html(run))


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
        state=html.escape(summary.state(run)),
        found="".join(f"<li>{html.escape(text)}</li>" for text in summary.found(run)),
        sections="\n".join(filter(None, sections)),
    )


def _section(title: str, note: str, *content: str) -> str:
    text = "".join(content)
    note = f'<p class="soft">{html.escape(note)}</p>' if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{note}{text}</section>" if text else ""


def _number(value: float) -> str:
    return f"{value:.4g}"


def _curves(run: Run, names: Mapping[str, None]) -> str:
    """A chart for each of the logs; that of validation is in the chart of the same name."""
    found = []
    for name in names:
        if name.startswith("val_") and name[4:] in names:
            continue
        pair = {key: curves.series(run, key) for key in (name, f"val_{name}")}
        pair = {key: points for key, points in pair.items() if points}
        if pair:
            found.append(charts.lines(name, pair, _number))
    return f'<div class="charts">{"".join(found)}</div>' if found else ""


def _metrics(run: Run) -> str:
    return _section("Loss and metrics", "", _curves(run, curves.of_training(run)))


def _times(run: Run) -> str:
    ranks = run.epochs[-1].measured()
    if not ranks:
        note = "An epoch of two calls of the step or more is needed: the first call is traced."
        return _section("Where a step's time goes", note, "<p></p>")
    names = dict.fromkeys(name for rank in ranks.values() for name in rank.parts())
    named = {key: name for key, name in PARTS.items() if key in names}
    shown = dict(list(ranks.items())[:_MOST_RANKS])
    rows = {f"rank {number}": rank.parts() for number, rank in shown.items()}
    head = ["rank", *(_SHORT.get(key, key) for key in named), "step"]
    cells = [
        [
            str(number),
            *(texts.short(1e3 * rank.parts().get(key, 0.0)) for key in named),
            texts.short(1e3 * sum(rank.parts().values())),
        ]
        for number, rank in shown.items()
    ]
    means = {
        PARTS[key]: [
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
        charts.bars(rows, named, texts.milliseconds),
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
    return _section("Bytes", note, charts.bars(rows, {"bytes": "bytes"}, texts.size))


def _added(run: Run, names: Sequence[str]) -> dict[str, None]:
    """Which of `names` tfdist has added to the logs."""
    logged = {name for epoch in run.epochs for name in epoch.logs} - run.metrics
    return dict.fromkeys(name for name in names if name in logged)


def _staleness(run: Run) -> str:
    names = _added(run, curves.STALENESS)
    workers = run.epochs[-1].workers
    rows = [
        [str(index), f"{own.updates}", f"{own.staleness:.2f}", f"{own.dropped}", f"{own.waits}"]
        for index, own in sorted(workers.items())
    ]
    head = ["worker", "updates", "staleness", "dropped", "waits"]
    found = charts.table(head, rows) if rows else ""
    return _section("Staleness", "", _curves(run, names), found)


def _members(run: Run) -> str:
    return _section("Members", "", _curves(run, _added(run, curves.MEMBERS)))


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
    found = [charts.lines("in use at the end of the epoch", used, texts.size)]
    found.append(charts.lines("most so far", peak, texts.size))
    if any(device.values()):
        found.append(charts.lines("GPUs, most so far", device, texts.size))
    return _section("Memory", "", f'<div class="charts">{"".join(found)}</div>')


def _network(run: Run) -> str:
    hosts: dict[str, RankNumbers] = {}
    for rank in run.epochs[-1].ranks:
        if rank is not None and rank.sent is not None:
            hosts.setdefault(rank.host, rank)
    rows = [
        [host, texts.size(rank.sent or 0), texts.size(rank.received or 0)]
        for host, rank in hosts.items()
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
