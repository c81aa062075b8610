"""Rates, times, prices and numbers of workers on a command line."""

from __future__ import annotations

import re
from typing import NoReturn

import click

# The largest number that is taken of anything here.
_MOST = 1e18
# The least number: with less, predictions would no longer be numbers.
_LEAST = 1e-18
_MOST_WORKERS = 1_000_000
_MOST_NUMBERS = 100
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def _split(value: object) -> tuple[float, str]:
    """A number greater than 0, and the unit after it; 0 if it is none."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9].*?)?\s*", str(value), re.I)
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:
        number = 0.0
    return (number if _LEAST <= number <= _MOST else 0.0), (found[2] or "" if found else "")


class Bandwidth(click.ParamType):
    """A rate such as 1Gbit/s or 100MB/s, in bytes per second."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Bytes per second."""
        number, unit = _split(value)
        # "b" is a bit and "B" a byte; who writes "MBPS" may mean either.
        found = re.fullmatch(r"([kmgtKMGT]?)((?i:bit|byte)|bps|Bps|b|B)(?:/s)?", unit)
        if not number or not found:
            self.fail(f"must be a rate such as 1Gbit/s or 100MB/s. Received: {value!r}", param, ctx)
        is_bytes = found[2] in ("B", "Bps") or found[2].lower() == "byte"
        return number * 1000.0 ** _POWERS[found[1].lower()] / (1 if is_bytes else 8)


class Part(click.ParamType):
    """A part of something, such as 0.5: more than 0, and at most 1."""

    name = "part"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The part."""
        number, unit = _split(value)
        if unit or not 0 < number <= 1:
            self.fail(f"must be more than 0, and at most 1. Received: {value!r}", param, ctx)
        return number


class Duration(click.ParamType):
    """A time such as 50us, 110ms or 1.5s, in seconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        number, unit = _split(value)
        if not number or unit not in _SECONDS:
            self.fail(f"must be a time such as 50us or 110ms. Received: {value!r}", param, ctx)
        return number * _SECONDS[unit]


class Size(click.ParamType):
    """A number of bytes such as 16GB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Bytes."""
        number, unit = _split(value)
        found = re.fullmatch(r"([kmgt]?)(i?)b", unit, re.I)
        if not number or not found:
            self.fail(f"must be a size such as 16GB. Received: {value!r}", param, ctx)
        return number * (1024.0 if found[2] else 1000.0) ** _POWERS[found[1].lower()]


class Price(click.ParamType):
    """What one machine costs in an hour, such as 2.5/h."""

    name = "price"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """In an hour, in whatever currency."""
        number, unit = _split(value)
        if not number or unit not in ("", "/h"):
            self.fail(f"must be a price for an hour such as 2.5/h. Received: {value!r}", param, ctx)
        return number


class Workers(click.ParamType):
    """Numbers of workers such as 1,2,4,...,64: three dots go on as the numbers before."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """The numbers, ascending."""
        if isinstance(value, list):
            return value
        parts = str(value).replace("…", "...").split(",")
        found: list[int] = []
        for index, part in enumerate(parts):
            if part.strip() == "...":
                end = parts[index + 1 : index + 2]
                if len(found) < 2 or not end or not _number(end[0]):
                    self._refuse(value, param, ctx)
                found += _between(found, _number(end[0]))
            elif _number(part):
                found.append(_number(part))
            else:
                self._refuse(value, param, ctx)
        if len(found) > _MOST_NUMBERS:
            self._refuse(value, param, ctx)
        return sorted(set(found))

    def _refuse(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        self.fail(
            f"must be at most {_MOST_NUMBERS} numbers from 1 to {_MOST_WORKERS:,} such as 1,2,4 or "
            "1,2,4,...,64. "
            f"Received: {value!r}",
            param,
            ctx,
        )


def _number(text: str) -> int:
    """The number of workers that is written there; 0 if it is none."""
    text = text.strip()
    is_short = text.isdecimal() and len(text) <= len(str(_MOST_WORKERS))
    return int(text) if is_short and int(text) <= _MOST_WORKERS else 0


def _between(found: list[int], end: int) -> list[int]:
    """What "..." stands for: equal steps after three numbers that have them, or equal ratios."""
    *_, before, last = found
    evenly = len(found) > 2 and 0 < last - before == before - found[-3]
    step, ratio = last - before, max(2, last // before)
    following: list[int] = []
    while (last := last + step if evenly else last * ratio) < end:
        following.append(last)
    return following
