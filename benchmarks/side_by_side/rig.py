"""Hosts on links of a given speed, and what their interfaces have sent.

A host is a network namespace, with a core of its own if there are enough cores. Where namespaces
are forbidden, the hosts are processes that meet over loopback. Its speed cannot be limited.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.traffic import network

ROOT = Path(__file__).resolve().parents[2]
CHECK = Path(__file__).with_name("rate_check.py")
UNLIMITED = "unlimited"


class Link(NamedTuple):
    """What a host's link is like.

    Attributes:
        bytes_per_second: what it carries.
        title: in tables.
        delay: seconds by which all that is sent arrives later.
    """

    bytes_per_second: float
    title: str
    delay: float = 0.0


# By the rate as `tc` writes it, and what comes after a "+".
LINKS = {
    UNLIMITED: Link(float("inf"), "no limit"),
    "10gbit": Link(1.25e9, "10 Gbit/s"),
    "1gbit": Link(1.25e8, "1 Gbit/s"),
    "100mbit": Link(1.25e7, "100 Mbit/s"),
    "100mbit+50ms": Link(1.25e7, "100 Mbit/s, 50 ms each way", 0.05),
    "10mbit": Link(1.25e6, "10 Mbit/s"),
}
# The share of its rate that a link must carry in a check, at least and at most: `tc` counts headers
# too, and the first burst is free. Where the cores cannot send so fast, as at 10 Gbit/s here, the
# link is not at fault.
LEAST, MOST = 0.85, 1.02
SENT_BY_ANY_CORE = 2e8
# After so many ways, there and back being two, TCP is as fast as a link that takes its time.
UNTIL_FAST = 25

# So an hour of measurements does not fail because something else ran for a few seconds.
CHECKS = 12
PAUSE_SECONDS = 1


def fits(carried: float, rate: str) -> bool:
    """Whether a link carries as much as it should.

    Args:
        carried: bytes per second, as measured.
        rate: a key of `LINKS`.
    """
    wanted = LINKS[rate][0]
    return LEAST * min(wanted, SENT_BY_ANY_CORE) <= carried <= MOST * wanted


class LocalHost:
    """Replaces a host on a machine that forbids namespaces; the link is loopback."""

    def __init__(self, address: str):
        self.address = address

    def limit(self, rate: str | None) -> None:
        """Does nothing: loopback has no limit, and `Rig.rates` offers no other rate there."""
        assert rate is None

    def start(self, command: Sequence[str], **options) -> subprocess.Popen:
        """Starts a program."""
        return subprocess.Popen(command, **options)


class Rig:
    """So many hosts.

    Attributes:
        hosts: the hosts, each a `network.Host` or a `LocalHost`.
        interface: the device over which the hosts meet.
        reason: why the hosts are on loopback; "" if they are on links.
    """

    def __init__(self, hosts: Sequence[network.Host | LocalHost], interface: str, reason: str):
        self.hosts = hosts
        self.interface = interface
        self.reason = reason
        self._delay = contextlib.ExitStack()

    def rates(self, wanted: Sequence[str]) -> list[str]:
        """The wanted rates that these hosts' links can have."""
        return [UNLIMITED] if self.reason else list(wanted)

    def limit(self, rate: str) -> None:
        """Sets the speed of all links, and their delay."""
        self.close()
        for host in self.hosts:
            host.limit(None if rate == UNLIMITED else rate.partition("+")[0])
        if LINKS[rate].delay:
            self._delay.enter_context(network.delayed(self.hosts, LINKS[rate].delay))

    def close(self) -> None:
        """Ends the delay of all links."""
        self._delay.close()

    def start(
        self, number: int, command: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> subprocess.Popen:
        """Starts a program on one host and its core; what it prints goes to `log`."""
        cores = sorted(os.sched_getaffinity(0))
        pinned = ["taskset", "--cpu-list", str(cores[number % len(cores)]), *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        with log.open("ab") as file:
            return self.hosts[number].start(
                pinned, env=environment, stdout=file, stderr=subprocess.STDOUT
            )

    def checked(self, rate: str, folder: Path) -> list[float]:
        """As `measured`, but repeated if the speed does not fit: this machine may have been busy.

        Raises:
            RuntimeError: when the speed does not fit at the last check either.
        """
        for _ in range(CHECKS):
            found = self.measured(rate, folder)
            if all(fits(carried, rate) for carried in found):
                return found
            time.sleep(PAUSE_SECONDS)
        raise RuntimeError(
            f"Links of {LINKS[rate][1]} must carry {LEAST:g} to {MOST:g} of that before anything "
            f"is measured; check what else runs. Received: {describe(found)}"
        )

    def measured(self, rate: str, folder: Path) -> list[float]:
        """Bytes per second that arrive at each host while each sends to the next one."""
        if len(self.hosts) == 1:
            return []
        # Counted are 0.4 seconds at the rate, but at least 4 MB. What comes before that passes the
        # limiter at once, 256 kB at each end of the link, or tells TCP the speed of a long way.
        link = LINKS[rate]
        before = int(1e6 + (UNTIL_FAST * link.delay * link.bytes_per_second if link.delay else 0))
        size = before + int(min(max(4e6, 0.4 * link.bytes_per_second), 5e8))
        processes = []
        logs = [folder / f"check{number}.json" for number in range(len(self.hosts))]
        for number, log in enumerate(logs):
            log.unlink(missing_ok=True)
            following = self.hosts[(number + 1) % len(self.hosts)].address
            command = [sys.executable, "-S", str(CHECK), self.hosts[number].address, following]
            sizes = [str(before), str(size)]
            processes.append(self.start(number, [*command, *sizes], {}, log))
        with ended(processes):
            if any([process.wait(60) for process in processes]):
                raise RuntimeError("\n".join(log.read_text()[-2000:] for log in logs))
        return [json.loads(log.read_text()) for log in logs]


@contextlib.contextmanager
def rig(count: int) -> Iterator[Rig]:
    """A rig of `count` hosts. The hosts are gone afterwards, even after Ctrl-C and SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if reason := network.reason_against():
            # Horovod counts ranks with the same address as ranks of one host.
            addresses = [f"127.0.0.{number + 1}" for number in range(count)]
            yield Rig([LocalHost(address) for address in addresses], "lo", reason)
        else:
            with network.hosts(count) as hosts, contextlib.closing(Rig(hosts, "eth0", "")) as made:
                yield made
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ended(processes: Sequence[subprocess.Popen]) -> Iterator[None]:
    """After this context, none of these processes still runs."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def describe(rates: Sequence[float]) -> str:
    """Measured rates in words."""
    return ", ".join(f"{rate / 1e6:.1f}" for rate in rates) + " MB/s"


def main() -> None:
    """Shows the links of 2, 3 and 4 hosts at all speeds."""
    scratch = Path(sys.argv[1])
    for count, rate in itertools.product((2, 3, 4), LINKS):
        with rig(count) as made:
            if rate in made.rates(list(LINKS)):
                made.limit(rate)
                print(count, LINKS[rate][1], describe(made.measured(rate, scratch)), made.reason)


if __name__ == "__main__":
    main()
