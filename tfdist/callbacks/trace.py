"""What replicas have noted about their steps, as events of the Trace Event Format."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tfdist.step.spans import BEGIN, COMPUTED, Point

_BEGINS, _ENDS = " begins", " ends"
_THREADS = 100  # numbers of threads for each replica
_UPDATE = "update"

_Times = dict[str, list[int]]
"""When a replica has reached the points of a step, by their names."""


class _Span(NamedTuple):
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
    yield _name("process_name", rank, 0, f"rank {rank}")
    steps: dict[tuple[int, int], _Times] = {}
    for point in points:
        times = steps.setdefault((point.replica, point.step), collections.defaultdict(list))
        times[point.name].append(point.nanoseconds)
    for replica in sorted({replica for replica, _ in steps}):
        thread, ended, lanes = _THREADS * replica, 0, 0
        yield _name("thread_name", rank, thread, f"replica {replica}")
        for (of, step), times in sorted(steps.items()):
            if of != replica:
                continue
            own, others = _parts(times, calls, ended)
            ended = max(map(max, times.values()))
            for span in own:
                yield _event(rank, thread, step, span, offset)
            for lane, span in _in_lanes(others):
                lanes = max(lanes, lane + 1)
                yield _event(rank, thread + 1 + lane, step, span, offset)
        for lane in range(lanes):
            yield _name("thread_name", rank, thread + 1 + lane, f"replica {replica}: exchange")


def _parts(times: _Times, calls: Sequence[int], ended: int) -> tuple[list[_Span], list[_Span]]:
    """The spans of a step that follow each other, in one that has all; and those beside these.

    Args:
        times: of the points of the step. A step with several optimizers has some points again.
        calls: when steps were called.
        ended: when the replica's step before ended; 0 if that is not known.
    """
    begun, last = min(times[BEGIN]), max(map(max, times.values()))
    called = max((call for call in calls if call <= begun), default=begun)
    waited = max(called, ended)
    names = [name.removesuffix(_ENDS) for name in times if name.endswith(_ENDS)]
    spans = [span for name in names for span in _pairs(name, times)]
    own = [_Span("step", min(waited, begun), last)]
    own.append(_Span("wait for data", min(waited, begun), begun))
    updates = sorted(span for span in spans if span.name == _UPDATE)
    if COMPUTED in times:  # noted a little late at times, as nothing waits for it
        computed = min([*times[COMPUTED], *(update.begun for update in updates)])
        own.append(_Span("compute", begun, computed))
    return [*own, *updates], [span for span in spans if span.name != _UPDATE]


def _pairs(name: str, times: _Times) -> Iterator[_Span]:
    """Each end of what has this name, with the last begin before it.

    A begin for which nothing waits may be noted after the end of something short.
    """
    begins = times.get(name + _BEGINS, [])
    for ended in sorted(times[name + _ENDS]) if begins else []:
        before = [begun for begun in begins if begun <= ended]
        yield _Span(name, max(before, default=ended), ended)


def _in_lanes(spans: Sequence[_Span]) -> Iterator[tuple[int, _Span]]:
    """Each span with the number of a lane in which it overlaps no other one."""
    free: list[int] = []  # when the last span of each lane ends
    for span in sorted(spans, key=lambda span: span.begun):
        lane = next((n for n, ended in enumerate(free) if ended <= span.begun), len(free))
        free[lane : lane + 1] = [span.ended]
        yield lane, span


def _event(rank: int, thread: int, step: int, span: _Span, offset: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": "step",
        "pid": rank,
        "tid": thread,
        "ts": (span.begun - offset) / 1e3,
        "dur": max(0, span.ended - span.begun) / 1e3,
        "args": {"step": step},
    }


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
