"""What `tfdist run --watch` shows of the ranks: live lines in a terminal, else a line at times."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from tfdist import environment
from tfdist.launcher.output import Screen
from tfdist.watch import status
from tfdist.watch.status import Status

_PLAIN_SECONDS = 10.0
_SECONDS = 0.5
_ROWS_OF_OTHERS = 4  # of the terminal, for what the script prints
_NARROW = 72  # columns; a table needs more
_MUCH = 0.2  # waiting that is worth a colour


class Watching:
    """Reads what the ranks say of themselves, and shows it now and then.

    Args:
        screen: where live lines are shown, if it is a terminal.
        say: shows a line otherwise.
    """

    def __init__(self, screen: Screen, say: Callable[[str], None]) -> None:
        self._screen, self._say = screen, say
        self._folder = tempfile.TemporaryDirectory(prefix="tfdist-watch-")
        self._is_live = os.isatty(screen.fd)
        self._next = self._next_lines = 0.0
        self._known: set[str] = set()  # whose first lines were shown

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
        if self._is_live:
            self._screen.show_below(rendered(found, *_size_of(self._screen.fd)))
            return
        is_due = now >= self._next_lines
        for one in found:
            if is_due or one.name not in self._known:
                self._say(one.line(status.now()))
        self._known |= {one.name for one in found}
        if is_due:
            self._next_lines = now + _PLAIN_SECONDS

    def close(self) -> None:
        """Takes the live lines away, and the folder."""
        if self._is_live:
            self._screen.show_below([])
        self._folder.cleanup()


def _size_of(terminal: int) -> tuple[int, int]:
    """Columns and rows; (0, 0) of a terminal that was closed: whoever writes to it notices that."""
    try:
        return os.get_terminal_size(terminal)
    except OSError:
        return 0, 0


def rendered(statuses: Sequence[Status], columns: int, rows: int) -> list[bytes]:
    """The lines of a table for a terminal: as wide as it is at most, and not as high.

    Args:
        statuses: of the ranks.
        columns: of the terminal.
        rows: of the terminal.
    """
    room = max(1, rows - _ROWS_OF_OTHERS)
    shown = statuses if len(statuses) < room else statuses[: max(0, room - 2)]
    if not shown:
        return []
    now = status.now()
    lines = [one.line(now)[:columns] for one in shown]
    if columns >= _NARROW:
        lines = _table(shown, now, columns)
    if len(shown) < len(statuses):
        lines.append(f"and {len(statuses) - len(shown)} more")
    return [line.encode() for line in lines]


def _table(statuses: Sequence[Status], now: float, columns: int) -> list[str]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(status.HEAD):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for one in statuses:
        waits = max(one.data or 0.0, one.others or 0.0) > _MUCH
        table.add_row(*one.cells(now), style="yellow" if waits else None)
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()
