"""The page on scaling: its script prints what the page says, and its tables are the code's."""

import re
import runpy

import pytest

from benchmarks import scaling_chart
from tests.docs.test_guides import DOCS, script, scripts  # noqa: F401

PAGE = "scaling.md"


def test_the_simulation_gives_what_the_page_says(script, capsys):  # noqa: F811
    assert set(scripts(PAGE)) == {"simulate.py"}
    runpy.run_path(str(script(PAGE, "simulate.py")), run_name="__main__")
    found = [float(text) for text in re.findall(r" (\d+) for 4,000", capsys.readouterr().out)]
    backup = found.pop(4)
    assert found == pytest.approx([2609, 2604, 2574, 878, 584], rel=0.1)
    assert f"With backups it is {backup:.0f}." in (DOCS / PAGE).read_text()


def test_the_page_says_that_its_figures_are_predicted():
    text = (DOCS / PAGE).read_text()
    assert "**All figures on this page are predicted, not measured.**" in text
    assert "images/scaling.png" in text and (DOCS / "images" / "scaling.png").exists()
    assert f"<!-- deaths:begin -->\n{scaling_chart.faults_table()}\n" in text


@pytest.mark.full
def test_the_table_of_knees_is_the_codes():
    assert f"<!-- knees:begin -->\n{scaling_chart.table()}\n" in (DOCS / PAGE).read_text()
