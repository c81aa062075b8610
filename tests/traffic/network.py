"""Hosts of their own on this machine: network namespaces on a bridge, whose counters are read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HOSTS_FILES = pathlib.Path("/etc/netns")


class Host:
    """A network namespace with one interface, `eth0`.

    Args:
        name: of the namespace.
        address: of the interface.
    """

    def __init__(self, name: str, address: str):
        self.name = name
        self.address = address

    def start(self, command: Sequence[str], **options) -> subprocess.Popen:
        """Starts a program there."""
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], **options)


def reason_against() -> str:
    """Why namespaces cannot be made here; "" if they can."""
    name = f"tfdist-try-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces need root and the program ip: {error}"
    return ""


@contextlib.contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """So many hosts, connected by a bridge; they are gone afterwards.

    Args:
        count: how many.
        rate: at most what each sends, as `tc` writes it, such as "1gbit"; None for no limit.
    """
    prefix = f"tfdist-{os.getpid()}"
    switch = f"{prefix}-switch"
    made = [Host(f"{prefix}-{i}", f"10.77.0.{i + 1}") for i in range(count)]
    with contextlib.ExitStack() as stack:
        for name in (switch, *(host.name for host in made)):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
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
            if rate is not None:
                limit = ["rate", rate, "burst", "256kb", "latency", "50ms"]
                _run("tc", "-n", host.name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
            stack.callback(_forget_name, _names_itself(host))
        yield made


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


def _names_itself(host: Host) -> pathlib.Path:
    """Lets the machine's name be the host's address there; Horovod connects to it."""
    path = _HOSTS_FILES / host.name / "hosts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"127.0.0.1 localhost\n{host.address} {os.uname().nodename}\n")
    return path


def _forget_name(path: pathlib.Path) -> None:
    path.unlink()
    path.parent.rmdir()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
