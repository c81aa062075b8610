"""What `tfdist run --watch` shows of the ranks: live lines in a terminal, else a line at times."""

from __future__ import annotations

import io
import math
import os
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from tfdist import environment
from tfdist.launcher.output import Screen
from tfdist.watch import status
from tfdist.watch.status import Status

_PLAIN_SECONDS = 10.0
_SECONDS = 0.5
_LONG = 60.0  # until it is said that nothing is heard
_DUMB = ("", "dumb", "unknown")
_WIDEST = 1000  # columns of a terminal; more than a table has
_ROWS_OF_OTHERS = 4  # of the terminal, for what the script prints
_INDENT = "  "
_MUCH = 0.2  # waiting that is worth a colour


class Watching:
    """Reads what the ranks say of themselves, and shows it now and then.

    Args:
        screen: where live lines are shown, if it is a terminal.
        say: shows a line otherwise.
    """

    def __init__(self, screen: Screen, say: Callable[[str], None]) -> None:
        self._screen, self._say = screen, say
        # A rank that is being killed may still write there while the folder is removed.
        self._folder = tempfile.TemporaryDirectory(
            prefix="tfdist-watch-", ignore_cleanup_errors=True
        )
        self._is_live = _moves_its_cursor(screen.fd)
        self._hears_nothing_at: float | None = None  # when to say so; None before the first look
        self._next = self._next_lines = 0.0
        self._known: set[tuple[str, bool]] = set()  # whose first lines were shown, and with rates

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells a rank where to write."""
        return {environment.WATCH: self._folder.name}

    @property
    def pause(self) -> float:
        """For how many seconds there is nothing to show."""
        return _SECONDS

    def look(self, now: float, pids: Sequence[int]) -> None:
        """Shows what the ranks say, if it is time.

        Args:
            now: the time, as `time.monotonic`.
            pids: of the ranks that run.
        """
        if now < self._next:
            return
        self._next = now + _SECONDS
        found = status.read(self._folder.name, pids)
        self._say_if_nothing_is_heard(now, bool(found))
        if self._is_live:
            self._screen.show_below(rendered(found, *_size_of(self._screen.fd)))
            return
        is_due = now >= self._next_lines
        for one in found:
            kind = one.name, one.samples is not None
            if is_due or kind not in self._known:
                self._say(one.line(status.now()))
            self._known.add(kind)
        if is_due:
            self._next_lines = now + _PLAIN_SECONDS

    def _say_if_nothing_is_heard(self, now: float, is_heard: bool) -> None:
        """Says once, if nobody has said anything for long, why that may be."""
        if is_heard:
            self._hears_nothing_at = math.inf
        elif self._hears_nothing_at is None:
            self._hears_nothing_at = now + _LONG
        elif now >= self._hears_nothing_at:
            self._hears_nothing_at = math.inf
            self._say(
                f"no rank has said anything for {_LONG:.0f} s: --watch sees `fit` of tfdist's "
                "strategies, in the processes that it has started"
            )

    def close(self) -> None:
        """Takes the live lines away, and the folder."""
        if self._is_live:
            self._screen.show_below([])
        self._folder.cleanup()


def _moves_its_cursor(stream: int) -> bool:
    """Whether a stream is a terminal that understands ANSI's sequences, by TERM."""
    return os.isatty(stream) and os.environ.get("TERM", "").lower() not in _DUMB


def _size_of(terminal: int) -> tuple[int, int]:
    """Columns and rows; (0, 0) of a terminal that was closed: whoever writes to it notices that."""
    try:
        return os.get_terminal_size(terminal)
    except OSError:
        return 0, 0


def rendered(statuses: Sequence[Status], columns: int, rows: int) -> list[bytes]:
    """The lines for a terminal: as wide as it is at most, and not as high.

    They are a table where that fits; else sentences, which are wrapped.

    Args:
        statuses: of the ranks.
        columns: of the terminal.
        rows: of the terminal.
    """
    room = max(1, rows - _ROWS_OF_OTHERS)
    shown = statuses if len(statuses) < room else statuses[: max(0, room - 2)]
    if not shown or columns < 1:
        return []
    now, more = status.now(), []
    if len(shown) < len(statuses):
        more = _wrapped([f"and {len(statuses) - len(shown)} more"], columns)[:1]
    lines = _table(shown, now, columns) or _sentences(shown, now, columns, room - len(more))
    return [line.encode() for line in [*lines, *more]]


def _table(statuses: Sequence[Status], now: float, columns: int) -> list[str]:
    """The lines of a table; none if it does not fit, as nothing in it is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(status.HEAD):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for one in statuses:
        waits = max(one.data or 0.0, one.others or 0.0) > _MUCH
        table.add_row(*one.cells(now), style="yellow" if waits else None)
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    wide = console.options.update(width=_WIDEST)
    if Measurement.get(console, wide, table).maximum > columns:
        return []
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def _sentences(statuses: Sequence[Status], now: float, columns: int, room: int) -> list[str]:
    """A sentence for each status; the first line of each if there is no room for more."""
    found = [_wrapped(one.pieces(now), columns) for one in statuses]
    if sum(map(len, found)) > room:
        found = [lines[:1] for lines in found]
    return [line for lines in found for line in lines]


def _wrapped(pieces: Sequence[str], columns: int) -> list[str]:
    """Lines of `pieces`, which are broken only where one is longer than a line.

    A word that is longer than a line is left out: a part of a number would be another number.
    """
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 2 <= columns:
            lines[-1] += f", {piece}"
        else:
            lines.append(f"{_INDENT}{piece}")
    wrapper = textwrap.TextWrapper(
        columns, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in wrapper.wrap(line) if len(part) <= columns]
