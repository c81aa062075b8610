"""What replicas have noted about their steps, as events of the Trace Event Format."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tfdist.step.spans import BEGIN, COMPUTED, EXCHANGE_OF_FRAGMENT, EXCHANGE_OF_ROUND, Point

_BEGINS, _ENDS = " begins", " ends"
_THREADS = 100  # numbers of threads for each replica
_UPDATE = "update"
_BETWEEN_STEPS = (EXCHANGE_OF_ROUND, EXCHANGE_OF_FRAGMENT)

_Times = dict[str, list[int]]
"""When a replica has reached the points of a step, by their names."""


class Span(NamedTuple):
    """A part of a step; times in nanoseconds."""

    name: str
    begun: int
    ended: int


def events_of(
    rank: int, points: Sequence[Point], calls: Sequence[int], offset: int
) -> Iterator[dict[str, Any]]:
    """The events of one rank: names of its threads, and spans with times in microseconds.

    Args:
        rank: the rank; the number of the process in the trace.
        points: what its replicas have noted.
        calls: when its steps were called, in nanoseconds.
        offset: how far its clock is ahead of that of rank 0, in nanoseconds.
    """
    yield named("process_name", rank, 0, f"rank {rank}")
    steps: dict[tuple[int, int], _Times] = {}
    for point in points:
        times = steps.setdefault((point.replica, point.step), collections.defaultdict(list))
        times[point.name].append(point.nanoseconds)
    for replica in sorted({replica for replica, _ in steps}):
        thread, ended, lanes = _THREADS * replica, 0, 0
        yield named("thread_name", rank, thread, f"replica {replica}")
        for (of, step), times in sorted(steps.items()):
            if of != replica:
                continue
            own, others = _parts(times, calls, ended)
            ended = max([ended, *(span.ended for span in own)])
            for span in own:
                yield event(rank, thread, span, {"step": step}, offset)
            for lane, span in _in_lanes(others):
                lanes = max(lanes, lane + 1)
                yield event(rank, thread + 1 + lane, span, {"step": step}, offset)
        for lane in range(lanes):
            yield named("thread_name", rank, thread + 1 + lane, f"replica {replica}: exchange")


def _parts(times: _Times, calls: Sequence[int], ended: int) -> tuple[list[Span], list[Span]]:
    """The spans of a step that follow each other, in one that has all; and those beside these.

    What replicas that train apart exchange after the step is beside it. A rank that joins an
    elastic job has this without the step.

    Args:
        times: of the points of the step. A step with several optimizers has some points again.
        calls: when steps were called.
        ended: when the replica's step before ended; 0 if that is not known.
    """
    names = [name.removesuffix(_ENDS) for name in times if name.endswith(_ENDS)]
    spans = [span for name in names for span in _pairs(name, times)]
    if BEGIN not in times:
        return [], spans
    begun, noted = min(times[BEGIN]), [at for own in times.values() for at in own]
    after = [min(own) for name, own in times.items() if name.startswith(_BETWEEN_STEPS)]
    last = max([begun, *(at for at in noted if not after or at < min(after))])
    called = max((call for call in calls if call <= begun), default=begun)
    waited = max(called, ended)
    own = [Span("step", min(waited, begun), last)]
    own.append(Span("wait for data", min(waited, begun), begun))
    updates = sorted(span for span in spans if span.name == _UPDATE)
    if COMPUTED in times:  # noted a little late at times, as nothing waits for it
        computed = min([*times[COMPUTED], *(update.begun for update in updates)])
        own.append(Span("compute", begun, computed))
    return [*own, *updates], [span for span in spans if span.name != _UPDATE]


def _pairs(name: str, times: _Times) -> Iterator[Span]:
    """Each end of what has this name, with the last begin before it.

    A begin for which nothing waits may be noted after the end of something short.
    """
    begins = times.get(name + _BEGINS, [])
    for ended in sorted(times[name + _ENDS]) if begins else []:
        before = [begun for begun in begins if begun <= ended]
        yield Span(name, max(before, default=ended), ended)


def _in_lanes(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with the number of a lane in which it overlaps no other one."""
    free: list[int] = []  # when the last span of each lane ends
    for span in sorted(spans, key=lambda span: span.begun):
        lane = next((n for n, ended in enumerate(free) if ended <= span.begun), len(free))
        free[lane : lane + 1] = [span.ended]
        yield lane, span


def event(
    process: int, thread: int, span: Span, args: dict[str, int], offset: int = 0
) -> dict[str, Any]:
    """A span as an event; `offset` is how far its clock is ahead, in nanoseconds."""
    return {
        "ph": "X",
        "name": span.name,
        "cat": "step",
        "pid": process,
        "tid": thread,
        "ts": (span.begun - offset) / 1e3,
        "dur": max(0, span.ended - span.begun) / 1e3,
        "args": args,
    }


def named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """The event that names a process ("process_name") or a thread ("thread_name")."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
