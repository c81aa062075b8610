"""Hosts of their own on this machine: network namespaces on a bridge, whose counters are read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator, Sequence

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
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, connected by a bridge; they are gone afterwards."""
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
            stack.callback(_forget_name, _names_itself(host))
        yield made


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
