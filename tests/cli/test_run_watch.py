"""`tfdist run --watch`: lines of the ranks below what they print, and plain lines elsewhere."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest

from tfdist.launcher.output import Screen
from tfdist.launcher.watching import rendered
from tfdist.watch.status import Status

STREAMS = ("stdin", "stdout", "stderr")
SAYS = """
from tfdist.watch import status

def say(step):
    own = status.Status(f"rank {rank}", status.now(), 1, step, 3, 100, 64.0, 0.05, 0.4, 10**9)
    status.write(os.environ["TFDIST_WATCH"], [own])
"""


class Terminal:
    """The other end of a terminal, and what it shows."""

    def __init__(self, rows, columns):
        self.end, self.rank = pty.openpty()
        fcntl.ioctl(self.rank, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.shown = Shown(rows, columns)

    def wait_for(self, *texts):
        """Waits until all `texts` are on the screen; with none of them, until nobody writes."""
        end = time.monotonic() + 60
        while not texts or not all(text in "\n".join(self.shown.lines()) for text in texts):
            assert time.monotonic() < end, self.shown.lines()
            if select.select([self.end], [], [], 1)[0]:
                try:
                    self.shown.take(os.read(self.end, 65536))
                except OSError:
                    return


def test_lines_are_said_without_a_terminal(launcher):
    body = SAYS + 'say(7)\nnote(f"said-{rank}")\nwait_for("said-0", "said-1")\ntime.sleep(1.5)\n'
    done = launcher.run(body, "--watch")
    assert done.returncode == 0
    for rank in (0, 1):
        line = f"rank {rank}: epoch 1/3, step 7/100, 64 samples/s, waits 5% for data and 40% for"
        assert done.stderr.decode().count(f"tfdist run: {line} others, 1.00 GB\n") == 1
    assert not list(launcher.temporary.glob("tfdist-watch-*"))


def test_without_it_ranks_are_told_of_no_folder(launcher):
    done = launcher.run('note(f"found-{rank}", os.environ.get("TFDIST_WATCH"))')
    assert done.returncode == 0
    assert launcher.note("found-0") == launcher.note("found-1") == "None"


def test_several_machines_are_refused(launcher):
    options = ("--watch", "--rendezvous", "127.0.0.1:2222", "--machines", 2)
    done = launcher.run("", *options, environ={"TFDIST_SECRET": "0123456789abcdef"})
    assert done.returncode == 2
    assert b"--watch sees the ranks of one machine only" in done.stderr, done.stderr


def test_a_terminal_shows_live_lines_below_the_progress_bar(launcher):
    body = """
    say(7)
    if rank == 0:
        print("first line", flush=True)
        print("  5/100 bar", end="", flush=True)
    while not (here / "go").exists():
        time.sleep(0.01)
    say(8)
    if rank == 0:
        print("\\r 99/100 bar", end="", flush=True)
        wait_for("end")
        print(flush=True)
    wait_for("end")
    """
    command = launcher.command(SAYS + _dedented(body), "--watch")
    terminal = Terminal(8, 90)
    job = subprocess.Popen(
        command, env=launcher.environment(TERM="xterm"), **dict.fromkeys(STREAMS, terminal.rank)
    )
    os.close(terminal.rank)
    terminal.wait_for("  5/100 bar", "rank 0    1/3  7/100", "rank 1    1/3  7/100")
    (launcher.directory / "go").touch()
    terminal.wait_for(" 99/100 bar", "rank 0    1/3  8/100", "rank 1")
    lines = terminal.shown.lines()
    at = lines.index("first line")
    assert lines[at + 1] == " 99/100 bar"
    assert lines[at + 2].split() == "epoch step samples/s waits for data for others memory".split()
    assert re.match(r"rank 0 +1/3 +8/100 +64 +5% +40% +1.00 GB", lines[at + 3])
    (launcher.directory / "end").touch()
    terminal.wait_for()
    assert job.wait(30) == 0
    lines = terminal.shown.lines()
    assert " 99/100 bar" in lines and not [line for line in lines if line.startswith("rank")]
    os.close(terminal.end)


def test_a_terminal_that_is_closed_leaves_ranks_their_time(launcher):
    body = """
    import signal, sys

    def save(number, frame):
        time.sleep(1)
        note(f"saved-{rank}")
        sys.exit(1)

    signal.signal(signal.SIGTERM, save)
    say(7)
    while True:
        time.sleep(0.1)
    """
    command = launcher.command(SAYS + _dedented(body), "--watch")
    terminal = Terminal(8, 90)
    job = subprocess.Popen(
        command, env=launcher.environment(TERM="xterm"), **dict.fromkeys(STREAMS, terminal.rank)
    )
    os.close(terminal.rank)
    terminal.wait_for("rank 0    1/3  7/100", "rank 1    1/3  7/100")
    os.close(terminal.end)
    assert job.wait(30) != 0
    assert launcher.note("saved-0") == launcher.note("saved-1") == ""


def _dedented(body):
    return "\n".join(line.removeprefix("    ") for line in body.splitlines())


class Shown:
    """A terminal: what it shows of the sequences that are used here."""

    def __init__(self, rows, columns):
        pyte = pytest.importorskip("pyte", reason="needs a terminal in Python: pip install pyte")
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)

    def take(self, data):
        self.stream.feed(data)

    def lines(self):
        return [line.rstrip() for line in self.screen.display]


@pytest.mark.parametrize("above", [0, 3, 5, 20])
def test_lines_below_leave_the_cursor_where_it_is(above, tmp_path):
    path = tmp_path / "written"
    path.touch()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    screen = Screen(fd)
    for number in range(above):
        screen.write(f"line {number}\r\n".encode())
    screen.write(b"half")
    screen.show_below([b"one", b"two"])
    screen.write(b" done\r\nnext")
    screen.show_below([b"three", b"four", b"five"])
    screen.write(b" one")
    shown = Shown(8, 30)
    shown.take(path.read_bytes())
    lines = [line for line in shown.lines() if line]
    assert lines[-5:] == ["half done", "next one", "three", "four", "five"]
    assert (shown.screen.cursor.x, shown.lines()[shown.screen.cursor.y]) == (8, "next one")
    screen.show_below([])
    screen.write(b" end")
    shown = Shown(8, 30)
    shown.take(path.read_bytes())
    assert [line for line in shown.lines() if line][-2:] == ["half done", "next one end"]
    os.close(fd)


@pytest.mark.parametrize("columns", [40, 90])
def test_the_lines_fit_the_terminal(columns):
    many = [Status(f"rank {n}", time.time(), 1, n, 3, 100, 1e6, 0.5, 0.1, 10**9) for n in range(50)]
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line.decode()) for line in rendered(many, columns, 12)]
    assert 6 <= len(lines) <= 8
    assert max(map(len, lines)) <= columns
    assert [line[:7].strip() for line in lines if line.startswith("rank")][-1][:6] == "rank 5"
    assert lines[-1] == "and 44 more"
    assert rendered([], columns, 12) == []
