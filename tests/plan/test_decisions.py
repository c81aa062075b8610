"""The decision table is in the docs, names pages that exist, and quotes what they measured."""

import re

import pytest

from benchmarks import decisions as page_of_decisions
from tests.docs import sources
from tfdist.plan import decisions

every = pytest.mark.parametrize("decision", decisions.DECISIONS, ids=lambda one: one.code)


def test_the_docs_have_the_table():
    text = (sources.DOCS / "planning.md").read_text()
    assert f"<!-- decisions:begin -->\n{page_of_decisions.text()}\n" in text


@every
def test_measured_figures_are_on_the_page_of_the_row(decision):
    page = (sources.DOCS / f"{decision.page}.md").read_text()
    for included in re.findall(r"{include} \.\./(benchmarks/\S+)", page):
        page += (sources.ROOT / included).read_text()
    figures = re.findall(r"([\d.]+) (?:ms|times the gradients)", decision.why)
    assert [figure for figure in figures if not re.search(rf"\b{figure}\b", page)] == []


def test_some_rows_have_measured_figures():
    assert sum("ms" in decision.why for decision in decisions.DECISIONS) >= 5


def test_every_situation_is_another_one():
    situations = [decision.situation for decision in decisions.DECISIONS]
    assert len(set(situations)) == len(situations)


def test_a_terminal_gets_three_lines_for_each():
    lines = decisions.as_text()
    assert len(lines) == 3 * len(decisions.DECISIONS)
    assert lines[0] == "model: fits; devices: one"
