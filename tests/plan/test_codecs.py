"""The time of compressors is what the docs' table says."""

import re

import pytest

from tests.docs import sources
from tfdist.plan import codecs


def rows():
    text = (sources.DOCS / "compression.md").read_text()
    (table,) = re.findall(r"<!-- codecs:begin -->(.*?)<!-- codecs:end -->", text, re.S)
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1] == "100":
            found[cells[0]] = float(cells[2].split()[0])
    return found


def test_the_table_is_that_of_the_docs():
    found = rows()
    assert len(found) > 10
    for name, seconds in codecs.SECONDS_PER_BYTE.items():
        assert seconds * 1e8 * 1e3 == pytest.approx(found[name]), name


def test_all_payloads_that_are_gathered_are_decoded():
    one, many = codecs.seconds("int8", 100, 1), codecs.seconds("int8", 100, 10)
    assert many[0] == one[0] and many[1] == pytest.approx(10 * one[1])
    assert codecs.seconds(None, 100, 1) == codecs.seconds("own", 100, 1) == (0.0, 0.0)
