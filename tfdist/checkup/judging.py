"""Which measurements are problems, and what to do about each; needs no TensorFlow.

A rank or a link is slow if it takes more than twice as long as the median of the others. An
all-reduce is slow if it takes more than three times as long as its links should.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence

from tfdist.checkup.long_sums import slow_sum
from tfdist.checkup.machine import Facts
from tfdist.checkup.report import Drill, Equality, Link, Report
from tfdist.engines.clocks import Clock

_FACTOR = 2.0
_LEAST_LATENCY = 1e-3  # seconds more than others; less is the noise of a busy machine
_MOST_OFFSET = 1.0  # seconds
_SHORT_OF_MEMORY = 0.05  # of the memory


def problems(report: Report) -> list[str]:
    """What should be repaired, in one line each."""
    names = [f"{fact.name} on {host_name(report, rank)}" for rank, fact in enumerate(report.ranks)]
    return [
        *versions([fact.versions for fact in report.ranks]),
        *gpus(report.ranks),
        *memory(report),
        *clocks(report.clocks, names),
        *slow_ranks(report.compute_seconds, names),
        *slow_links(report, names),
        *([] if _hosts_short_of_cores(report) else slow_sum(report.sums)),
        *unequal(report.equalities, names),
        *(failed(report.drill) if report.drill else []),
    ]


def notes(report: Report, left_out: str) -> list[str]:
    """What users should know although it is no problem, in one line each.

    Args:
        report: what was measured.
        left_out: why not all all-reduces were measured; "" if they were.
    """
    found = [f"{left_out}, so they were left out"] if left_out else []
    short = _hosts_short_of_cores(report)
    for rank, (count, cores) in short.items():
        found.append(
            f"{count} ranks share {cores:g} core(s) on {host_name(report, rank)}: what is measured "
            "there is the cores as much as the links"
        )
    if short:  # which may be the reason, so it is no problem
        found += slow_sum(report.sums)
    size = len(report.ranks)
    if len(report.links) < size * (size - 1) // 2:
        found.append(
            f"{len(report.links)} of {size * (size - 1) // 2} pairs of ranks were measured, as all "
            "would take too long"
        )
    return found


def _hosts_short_of_cores(report: Report) -> dict[int, tuple[int, float]]:
    """By the first rank of a host with more ranks than cores: how many there are of both."""
    found = {}
    for host in dict.fromkeys(report.hosts):
        rank, count = report.hosts.index(host), report.hosts.count(host)
        fact = report.ranks[rank]
        cores = min(fact.cores, fact.core_limit or fact.cores)
        if count > cores and not fact.gpus:
            found[rank] = count, cores
    return found


def host_name(report: Report, rank: int) -> str:
    """The name of a rank's host, with its number if several hosts have that name."""
    host = report.ranks[rank].host
    alike = {report.hosts[r] for r, fact in enumerate(report.ranks) if fact.host == host}
    return f"{host} (host {report.hosts[rank]})" if len(alike) > 1 else host


def versions(found: Sequence[Mapping[str, str | None]]) -> Iterator[str]:
    """Versions that are not equal everywhere.

    Args:
        found: of each rank, the versions by name.

    Example:

    >>> from tfdist.checkup.judging import versions
    >>> list(versions([{"NumPy": "2.4.6"}, {"NumPy": "2.4.6"}, {"NumPy": "2.4.5"}]))[0]
    'NumPy is 2.4.6 in ranks 0, 1, but 2.4.5 in rank 2: install the same version everywhere'
    """
    for name in found[0]:
        ranks: dict[str | None, list[int]] = {}
        for rank, own in enumerate(found):
            ranks.setdefault(own[name], []).append(rank)
        if len(ranks) > 1:
            having = ", but ".join(f"{v or 'missing'} in {_ranks(r)}" for v, r in ranks.items())
            yield f"{name} is {having}: install the same version everywhere"


def gpus(found: Sequence[Facts]) -> Iterator[str]:
    """Ranks without a GPU in a job with GPUs."""
    without = [rank for rank, fact in enumerate(found) if not fact.gpus]
    if 0 < len(without) < len(found):
        yield (
            f"{_ranks(without)} see(s) no GPU, while others do: look there at `nvidia-smi` and at "
            "CUDA_VISIBLE_DEVICES, and install tensorflow[and-cuda]"
        )


def memory(report: Report) -> Iterator[str]:
    """Hosts with hardly any memory left."""
    for host in dict.fromkeys(report.hosts):
        rank = report.hosts.index(host)
        fact = report.ranks[rank]
        most = min(fact.memory_bytes, fact.memory_limit_bytes or fact.memory_bytes)
        if fact.available_bytes < _SHORT_OF_MEMORY * most:
            yield (
                f"Only {fact.available_bytes / 1e6:,.0f} MB of memory are free on "
                f"{host_name(report, rank)}: end what else runs there"
            )


def clocks(found: Sequence[Clock | None], names: Sequence[str]) -> Iterator[str]:
    """Clocks that are far from that of rank 0.

    Args:
        found: of each rank.
        names: of the ranks.
    """
    for clock, name in zip(found, names):
        if clock is not None and abs(clock.offset_seconds) - clock.error_seconds > _MOST_OFFSET:
            yield (
                f"The clock of {name} is {clock.offset_seconds:+.1f} s from that of rank 0: "
                "let both hosts set their clocks by NTP"
            )


def slow_ranks(seconds: Sequence[float], names: Sequence[str]) -> Iterator[str]:
    """Ranks that compute more slowly than the others.

    Args:
        seconds: of each rank, how long the same computation takes.
        names: of the ranks.
    """
    for rank, (own, usual) in enumerate(zip(seconds, _of_others(seconds))):
        if usual and own > _FACTOR * usual:
            yield (
                f"{names[rank]} computes {own / usual:.1f}x as long as the others: see what else "
                "runs there and how many cores it may use, or train with balance=True"
            )


@dataclasses.dataclass(frozen=True)
class _Way:
    """What connects two hosts, or two ranks of one host.

    Attributes:
        ends: their names.
        link: the best one of the ranks there.
    """

    ends: tuple[str, str]
    link: Link


def slow_links(report: Report, names: Sequence[str]) -> Iterator[str]:
    """Links that are slower than the others; hosts all of whose links are slow are named once.

    Args:
        report: with the links.
        names: of the ranks.
    """
    hosts = [f"host {host_name(report, rank)}" for rank in range(len(report.hosts))]
    between: dict[tuple[int, int], _Way] = {}
    within: list[_Way] = []
    for link in report.links:
        first, second = link.ranks
        if not link.between_hosts:
            within.append(_Way((names[first], names[second]), link))
            continue
        a, b = sorted([first, second], key=lambda rank: report.hosts[rank])
        key = report.hosts[a], report.hosts[b]
        if key not in between or link.seconds < between[key].link.seconds:
            between[key] = _Way((hosts[a], hosts[b]), link)
    yield from _slow_ways(list(between.values()))
    yield from _slow_ways(within)


def slow_of(links: Sequence[Link]) -> list[Link]:
    """Those links that are slower than the others of their kind: between hosts, or on a host."""
    found = []
    for between in (True, False):
        some = [link for link in links if link.between_hosts == between]
        per_byte = _of_others([1 / link.bandwidth_bytes_per_second for link in some])
        latencies = _of_others([link.usual_latency_seconds for link in some])
        for link, usual, latency in zip(some, per_byte, latencies):
            is_late = link.latency_seconds > max(_FACTOR * latency, latency + _LEAST_LATENCY)
            is_narrow = 1 / link.bandwidth_bytes_per_second > _FACTOR * usual
            if usual and (is_narrow or is_late):
                found.append(link)
    return found


def _slow_ways(ways: Sequence[_Way]) -> Iterator[str]:
    slow_links = slow_of([way.link for way in ways])
    slow = [way for way in ways if way.link in slow_links]
    fast = [way.link for way in ways if way not in slow]
    usual = f"; others have {statistics.median(map(_rate, fast)):,.0f} MB/s" if fast else ""
    while end := _worst_end(ways, slow):
        worst = max((way.link for way in slow if end in way.ends), key=lambda link: link.seconds)
        ways, slow = ([way for way in some if end not in way.ends] for some in (ways, slow))
        look = "network card, cable and switch port" if worst.between_hosts else "cores"
        yield (
            f"All links of {end} are slow ({_shown(worst)}{usual}): look at its "
            f"{look}, and at what else runs there"
        )
    for way in slow:
        first, second = way.ends
        look = "the switches between the two" if way.link.between_hosts else "their cores"
        yield (
            f"The link between {first} and {second} is slow ({_shown(way.link)}{usual}): look at "
            f"{look}, and at what else runs there"
        )


def _worst_end(ways: Sequence[_Way], slow: Sequence[_Way]) -> str:
    """The end with the slowest links of those that have several links, all slow; "" for none."""
    seconds: dict[str, float] = {}
    for end in dict.fromkeys(end for way in slow for end in way.ends):
        own = [way for way in ways if end in way.ends]
        if len(own) > 1 and all(way in slow for way in own):
            seconds[end] = sum(way.link.seconds for way in own)
    return max(seconds, key=seconds.__getitem__, default="")


def unequal(found: Sequence[Equality], names: Sequence[str]) -> Iterator[str]:
    """Features that do not give the result of one device.

    Args:
        found: by feature.
        names: of the ranks.
    """
    for equality in found:
        if not equality.holds:
            yield (
                f"Training with {equality.feature} differs from one device by "
                f"{equality.difference:.1e} in {names[equality.rank]}, where "
                f"{equality.tolerance:.0e} is allowed: do not train here before this is found. "
                "Compare the versions above, and test that host alone"
            )


def failed(drill: Drill) -> Iterator[str]:
    """What went wrong in the drill."""
    if drill.difference is None:
        yield (
            f"The elastic job did not go on after a rank was killed ({drill.problem}): leave out "
            "--min until `tfdist run -n 2 --min 2 --restarts 1` works on the host of rank 0"
        )
    elif drill.difference > drill.tolerance:
        yield (
            f"After a rank was killed, the weights differ from one device by "
            f"{drill.difference:.1e}: leave out --min, and report this"
        )


def _of_others(values: Sequence[float]) -> list[float]:
    """For each value the median of the others, the lower one of two; 0.0 if there are none."""
    return [
        statistics.median_low([*values[:place], *values[place + 1 :]]) if len(values) > 1 else 0.0
        for place in range(len(values))
    ]


def _rate(link: Link) -> float:
    return link.bandwidth_bytes_per_second / 1e6


def _shown(link: Link) -> str:
    return f"{_rate(link):,.1f} MB/s, {1e3 * link.latency_seconds:.2f} ms"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
