"""Rates, times, prices and numbers of workers on a command line."""

import click
import pytest

from tfdist.cli.quantities import Bandwidth, Duration, Part, Price, Size, Workers


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Bandwidth(), "1Gbit/s", 1.25e8),
        (Bandwidth(), "100 mbit", 1.25e7),
        (Bandwidth(), "100Mbps", 1.25e7),
        (Bandwidth(), "2GB/s", 2e9),
        (Bandwidth(), "100MBps", 1e8),
        (Bandwidth(), "2Gb/s", 2.5e8),
        (Duration(), "50us", 5e-5),
        (Duration(), "110ms", 0.11),
        (Duration(), "1.5s", 1.5),
        (Part(), "0.5", 0.5),
        (Part(), "1", 1.0),
        (Price(), "2.5/h", 2.5),
        (Price(), "3", 3.0),
        (Size(), "16GB", 16e9),
        (Size(), "16GiB", 16 * 2**30),
        (Workers(), "1,2,8", [1, 2, 8]),
        (Workers(), "1,2,4,...,20", [1, 2, 4, 8, 16, 20]),
        (Workers(), "1,2,4,…,10000", [*(2**n for n in range(14)), 10000]),
        (Workers(), "2,4,6,...,12", [2, 4, 6, 8, 10, 12]),
        (Workers(), "1,10,...,1000", [1, 10, 100, 1000]),
    ],
)
def test_values(kind, text, value):
    found = kind.convert(text, None, None)
    assert found == (value if isinstance(value, list) else pytest.approx(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(
            (Bandwidth(), text)
            for text in (
                "1",
                "fast",
                "0Gbit/s",
                "1Gbit/h",
                "-1Gbit/s",
                "1e99GB",
                "1MBPS",
                "1e-99bit/s",
            )
        ),
        *((Duration(), text) for text in ("50", "0ms", "x", "1.2.3s", "nans")),
        *((Part(), text) for text in ("nan", "0", "1.1", "-0.5", "0.5s")),
        *((Price(), text) for text in ("x", "0/h", "2/day")),
        *((Size(), text) for text in ("16", "16Gbit")),
        *((Workers(), text) for text in ("", "0", "1,x", "...,4", "1,...,4", "1,2,...", "9999999")),
        (Workers(), "1,2,3,...,1000"),
        (Workers(), "1,2,3,...,99999999999"),
        (Workers(), "1,2,...," + "9" * 5000),
    ],
)
def test_other_texts_are_refused(kind, text):
    with pytest.raises(click.BadParameter, match="Received: "):
        kind.convert(text, None, None)
