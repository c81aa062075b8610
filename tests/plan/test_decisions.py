"""The decision table is in the docs, names pages that exist, and quotes what they measured."""

import itertools
import re

import pytest

from benchmarks import decisions as page_of_decisions
from tests.docs import sources
from tfdist.plan import decisions

# What can be answered to each question.
ANSWERS = (
    (
        "fits",
        "fits but for the optimizer's state",
        "does not fit",
        "does not fit, a chain of layers",
        "does not fit, a large embedding",
        "one layer does not fit",
    ),
    (
        "one",
        "one machine",
        "several machines",
        "several machines with several devices",
        "several sites",
    ),
    ("fast", "slow"),
    ("equal", "some slower for good", "slow now and then", "very unequal"),
    ("stable", "preemptible"),
)
# A row for one of the latter is also for the former.
WIDER = {
    "fits but for the optimizer's state": "does not fit",
    "does not fit, a chain of layers": "does not fit",
    "does not fit, a large embedding": "does not fit",
    "several machines with several devices": "several machines",
    "several sites": "several machines",
}
FIGURES = re.compile(r"([\d.]+) (?:(?:ms|times|kB|MB|bytes|Gbit/s|Mbit/s)\b|%)")

every = pytest.mark.parametrize("decision", decisions.DECISIONS, ids=lambda one: one.code)


def test_the_docs_have_the_table():
    text = (sources.DOCS / "planning.md").read_text()
    assert f"<!-- decisions:begin -->\n{page_of_decisions.text()}\n" in text


@every
def test_measured_figures_are_on_the_page_of_the_row(decision):
    page = (sources.DOCS / f"{decision.page}.md").read_text()
    for included in re.findall(r"{include} \.\./(benchmarks/\S+)", page):
        page += (sources.ROOT / included).read_text()
    page = re.sub("<!-- decisions:begin.*decisions:end -->", "", page, flags=re.S)
    found = FIGURES.findall(decision.why)
    assert [f for f in found if not re.search(rf"(?<![\d.]){re.escape(f)}(?!\d)", page)] == []


def test_rows_have_measured_figures_or_say_why_they_have_none():
    without = [one for one in decisions.DECISIONS if not FIGURES.search(one.why)]
    assert without == [one for one in decisions.DECISIONS if "Not measured: " in one.why]
    # Starting again, files, and what was never run between machines or on a GPU.
    assert len(without) == 5


def rows_for(situation):
    def is_for(row, answer):
        return row in (decisions.ANY, answer, WIDER.get(answer))

    return [one for one in decisions.DECISIONS if all(map(is_for, one.situation, situation))]


def test_every_situation_has_a_row():
    every_one = [*itertools.product(*ANSWERS)]
    assert len(every_one) == 480
    assert [situation for situation in every_one if not rows_for(situation)] == []


def test_rows_have_answers_that_can_be_given():
    for question, answers in enumerate(ANSWERS):
        given = {decision.situation[question] for decision in decisions.DECISIONS}
        assert given <= {*answers, decisions.ANY}


def test_every_situation_is_another_one():
    situations = [decision.situation for decision in decisions.DECISIONS]
    assert len(set(situations)) == len(situations)


def test_a_terminal_gets_three_lines_for_each():
    lines = decisions.as_text()
    assert len(lines) == 3 * len(decisions.DECISIONS)
    assert lines[0] == "model: fits; devices: one"
