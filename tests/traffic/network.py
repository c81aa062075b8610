"""Hosts of their own on this machine: network namespaces on a bridge, whose counters are read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HOSTS_FILES = pathlib.Path("/etc/netns")
_PREFIX = "tfdist-"
_DELAY = pathlib.Path(__file__).with_name("delay.py")

# How much of what a host sends after a pause passes at once; `tc` writes 1024 bytes as 1kb.
BURST = "256kb"
# How fast TCP sends, whatever this machine's own choice is. BBR would remember for ten seconds how
# soon answers came before a link was delayed.
_CONGESTION = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control"
_ALLOWED = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


class Host:
    """A network namespace with one interface, `eth0`.

    Args:
        name: of the namespace.
        address: of the interface.
        switch: the namespace of the bridge.
        port: the bridge's end of the link.
    """

    def __init__(self, name: str, address: str, switch: str, port: str):
        self.name = name
        self.address = address
        self.switch = switch
        self.port = port
        self._ends = [(name, "eth0"), (switch, port)]

    def limit(self, rate: str | None, burst: str = BURST) -> None:
        """Lets the host send and receive at most at `rate`, as `tc` writes it; None: no limit.

        After a pause, `burst` passes at once. With less, short messages meet the limit too, but
        fast links lose some of their rate.
        """
        for namespace, device in self._ends:
            qdisc = ["tc", "-n", namespace, "qdisc"]
            if rate is None:
                subprocess.run([*qdisc, "del", "dev", device, "root"], capture_output=True)
            else:
                limit = ["rate", rate, "burst", burst, "latency", "50ms"]
                _run(*qdisc, "replace", "dev", device, "root", "tbf", *limit)

    def cut(self) -> None:
        """Takes the host off the network: nobody is told."""
        _run("ip", "-n", self.switch, "link", "set", self.port, "down")

    def mend(self) -> None:
        """Brings the host back to the network, after `cut`."""
        _run("ip", "-n", self.switch, "link", "set", self.port, "up")

    def mute(self) -> None:
        """Loses all that the host sends; it still receives. Nobody is told."""
        others = [f"10.77.0.{number}" for number in range(1, 255)]
        for other in others:
            nobody = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
            _run("ip", "-n", self.name, "neighbor", "replace", other, *nobody)

    def start(self, command: Sequence[str], **options) -> subprocess.Popen:
        """Starts a program there."""
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], **options)


def reason_against() -> str:
    """Why namespaces cannot be made here; "" if they can."""
    name = f"{_PREFIX}{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
        try:
            _use_cubic(name)
        finally:
            _run("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces need root, the program ip and TCP's CUBIC: {error}"
    return ""


@contextlib.contextmanager
def hosts(count: int, rate: str | None = None, burst: str = BURST) -> Iterator[list[Host]]:
    """So many hosts, connected by a bridge; they are gone afterwards.

    Args:
        count: how many.
        rate: at most what each sends and receives, as `tc` writes it, such as "1gbit"; None for no
            limit.
        burst: as for `Host.limit`.
    """
    _remove_left_behind()
    prefix = f"{_PREFIX}{os.getpid()}"
    switch = f"{prefix}-switch"
    made = [Host(f"{prefix}-{i}", f"10.77.0.{i + 1}", switch, f"port{i}") for i in range(count)]
    with contextlib.ExitStack() as stack:
        for name in (switch, *(host.name for host in made)):
            # First, as Ctrl-C may come between the two.
            stack.callback(_remove, name)
            _run("ip", "netns", "add", name)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(made):
            port = f"port{index}"
            peer = ["peer", "name", "eth0", "netns", host.name]
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _run("ip", "-n", host.name, "link", "set", "eth0", "up")
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
            _use_cubic(host.name)
            host.limit(rate, burst)
            _names_itself(host)
        yield made


@contextlib.contextmanager
def delayed(made: Sequence[Host], seconds: float) -> Iterator[None]:
    """In this context, what any of all `hosts` sends to another one arrives so much later.

    A process stands in for the bridge (`delay.py`). What is under way at the beginning and at the
    end is lost, so TCP sends it again.

    Raises:
        RuntimeError: when that process cannot start, or has ended before the context.
    """
    switch, ports = made[0].switch, [host.port for host in made]
    for port in ports:
        _run("ip", "-n", switch, "link", "set", port, "nomaster")
    command = [sys.executable, "-S", str(_DELAY), str(seconds), *ports]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(["ip", "netns", "exec", switch, *command], **pipes) as relay:
        assert relay.stdout and relay.stderr
        try:
            has_begun = relay.stdout.readline() == b"ready\n"
            if has_begun:
                yield
            if not has_begun or relay.poll() is not None:
                raise RuntimeError(f"Nothing is delayed: {relay.stderr.read().decode()[-3000:]}")
        finally:
            relay.kill()
            for port in ports:
                _run("ip", "-n", switch, "link", "set", port, "master", "bridge")


def run_ranks(
    made: Sequence[Host],
    command: Sequence[str],
    folder: pathlib.Path,
    variables: Mapping[str, str],
    deadline: float,
) -> None:
    """Runs a program on each host, and waits for all of them.

    Args:
        made: the hosts.
        command: the program; the host's number, `folder` and all hosts' addresses are appended.
        folder: where what host N prints is kept, in `N.log`.
        variables: environment variables to set.
        deadline: seconds.

    Raises:
        RuntimeError: with the ends of what was printed, when a program fails.
        subprocess.TimeoutExpired: at the deadline; no program runs on.
    """
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), **variables}
    addresses = [host.address for host in made]
    logs = [folder / f"{number}.log" for number in range(len(made))]
    ranks = []
    try:
        for number, host in enumerate(made):
            arguments = [*command, str(number), str(folder), *addresses]
            with logs[number].open("wb") as log:
                ranks.append(
                    host.start(arguments, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
        for rank in ranks:
            rank.wait(deadline)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("\n".join(log.read_text()[-3000:] for log in logs))


def _use_cubic(namespace: str) -> None:
    """Sets TCP's congestion control, which Linux may not allow in namespaces yet."""
    allowed = _ALLOWED.read_text().split()
    if "cubic" not in allowed:
        _ALLOWED.write_text(" ".join([*allowed, "cubic"]))
    _run("ip", "netns", "exec", namespace, "sh", "-c", _CONGESTION)


def _names_itself(host: Host) -> None:
    """Lets the machine's name be the host's address there; Horovod connects to it."""
    path = _HOSTS_FILES / host.name / "hosts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"127.0.0.1 localhost\n{host.address} {os.uname().nodename}\n")


def _remove(name: str) -> None:
    """Removes what there is of a namespace."""
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    shutil.rmtree(_HOSTS_FILES / name, ignore_errors=True)


def _remove_left_behind() -> None:
    """Removes namespaces of processes that were killed, and so could not do it."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        name = line.split()[0]
        if not name.startswith(_PREFIX):
            continue
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not pathlib.Path("/proc", owner).exists():
            _remove(name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
