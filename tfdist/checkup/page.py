"""What was found, as a page of text; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfdist.checkup.judging import host_name
from tfdist.checkup.machine import Facts
from tfdist.checkup.report import Link, Report

_MOST_LINKS = 28  # the pairs of 8 ranks


def as_text(report: Report) -> str:
    """The report for people, in several lines."""
    lines = ["Versions", *_versions(report.ranks), "Hosts", *_hosts(report)]
    lines += ["Ranks", *_ranks(report), "Links between ranks", *_links(report.links)]
    lines += ["All-reduce of all ranks", *_sums(report)]
    lines += ["Equality with one device", *_equalities(report)]
    if report.drill is not None:
        off = report.drill.difference
        outcome = "failed" if off is None else f"weights differ from one device by {off:.1e}"
        lines.append(f"A rank of an elastic job killed and replaced ({report.drill.seconds:.0f} s)")
        lines.append(f"  {outcome}")
    if report.notes:
        lines += ["Notes", *(f"  {note}" for note in report.notes)]
    lines += [f"Problems (after {report.seconds:.0f} s)"]
    lines += [f"  {problem}" for problem in report.problems] or ["  none"]
    return "\n".join(lines)


def _versions(facts: Sequence[Facts]) -> Iterator[str]:
    for name in facts[0].versions:
        found = dict.fromkeys(fact.versions[name] or "not installed" for fact in facts)
        differ = "   (not equal: see below)" if len(found) > 1 else ""
        yield f"  {name:<12} {', '.join(found)}{differ}"


def _hosts(report: Report) -> Iterator[str]:
    for host in dict.fromkeys(report.hosts):
        ranks = [rank for rank, own in enumerate(report.hosts) if own == host]
        fact = report.ranks[ranks[0]]
        cores = f"{fact.cores} cores"
        if fact.core_limit is not None:
            cores += f" (limit {fact.core_limit:g})"
        memory = f"{fact.available_bytes / 1e9:.1f} of {fact.memory_bytes / 1e9:.1f} GB free"
        if fact.memory_limit_bytes is not None:
            memory += f" (limit {fact.memory_limit_bytes / 1e9:.1f} GB)"
        gpus = f"{len(fact.gpus)} GPU(s) seen by a rank" if fact.gpus else "no GPU"
        yield f"  {host_name(report, ranks[0])}: {len(ranks)} rank(s), {cores}, {memory}, {gpus}"


def _ranks(report: Report) -> Iterator[str]:
    for rank, fact in enumerate(report.ranks):
        clock = report.clocks[rank]
        if clock is None:
            ahead = "clock not measured"
        else:
            offset, error = 1e3 * clock.offset_seconds, 1e3 * clock.error_seconds
            ahead = f"clock {offset:+.2f} ms, at most {error:.2f} ms off" if rank else "clock 0"
        computes = f"computes in {1e3 * report.compute_seconds[rank]:.1f} ms"
        yield f"  {fact.name} on {host_name(report, rank)}: {computes}, {ahead}"


def _links(links: Sequence[Link]) -> Iterator[str]:
    shown = links
    if len(links) > _MOST_LINKS:
        shown = sorted(links, key=lambda link: -link.seconds)[:_MOST_LINKS]
        yield f"  the slowest {_MOST_LINKS} of {len(links)}:"
    yield "  ranks      latency    bandwidth"
    for link in shown:
        ranks = f"{link.ranks[0]} - {link.ranks[1]}"
        latency = f"{1e3 * link.latency_seconds:.2f} ms"
        bandwidth = f"{link.bandwidth_bytes_per_second / 1e6:,.1f} MB/s"
        where = "between hosts" if link.between_hosts else "on one host"
        yield f"  {ranks:<8} {latency:>9} {bandwidth:>12}   {where}"


def _sums(report: Report) -> Iterator[str]:
    yield "  size         time    a ring on the slowest link"
    for found in report.sums:
        size = f"{found.bytes / 1e6:g} MB" if found.bytes >= 1e6 else f"{found.bytes / 1e3:g} kB"
        times = f"{1e3 * found.seconds:.1f} ms", f"{1e3 * found.ring_seconds:.1f} ms"
        yield f"  {size:<7} {times[0]:>11} {times[1]:>11}"


def _equalities(report: Report) -> Iterator[str]:
    for found in report.equalities:
        verdict = "equal" if found.holds else "NOT EQUAL"
        off = f"off by {found.difference:.1e}, {found.tolerance:.0e} allowed"
        yield f"  {found.feature:<36} {verdict:<9} {off}"
