"""The time of compressors is what the docs' table says."""

import re

import pytest

from tests.docs import sources
from tfdist.plan import codecs


def cells_of(name):
    """The cells of each line of a table of the page."""
    text = (sources.DOCS / "compression.md").read_text()
    (table,) = re.findall(rf"<!-- {name}:begin -->(.*?)<!-- {name}:end -->", text, re.S)
    for line in table.splitlines():
        yield [cell.strip() for cell in line.strip("|").split("|")]


def rows():
    return {
        cells[0]: float(cells[2].split()[0])
        for cells in cells_of("codecs")
        if len(cells) == 7 and cells[1] == "100"
    }


def test_the_table_is_that_of_the_docs():
    found = rows()
    assert len(found) > 10
    for name, seconds in codecs.SECONDS_PER_BYTE.items():
        assert seconds * 1e8 * 1e3 == pytest.approx(found[name]), name


def test_what_decodes_is_that_of_the_docs():
    found = {c[0]: float(c[1].split()[0]) for c in cells_of("payloads") if "(" in c[-1]}
    assert codecs.DECODING == {name: share for name, share in found.items() if name != "noop"}


def test_all_payloads_that_are_gathered_are_decoded():
    one, many = codecs.seconds("int8", 100, 1), codecs.seconds("int8", 100, 10)
    assert many[0] == one[0] and many[1] == pytest.approx(10 * one[1])
    assert codecs.seconds(None, 100, 1) == codecs.seconds("own", 100, 1) == (0.0, 0.0)
