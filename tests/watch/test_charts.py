"""Charts: lines end where the values end, and say what they end with."""

import math
import re
import sys

import pytest

from tfdist.watch import charts


def _chart(values, **more):
    points = [(number + 1, value) for number, value in enumerate(values)]
    return charts.lines("loss", {"loss": points}, "{:g}".format, **more)


def _legend(chart):
    return re.search("<b>(.*?)</b>", chart)[1]


def test_values_that_are_not_finite_are_no_points():
    chart = _chart([2.0, math.inf, 1.0])
    assert chart.count("dot") == 2
    assert "inf" not in chart and "nan" not in chart
    assert _legend(chart) == "1"


@pytest.mark.parametrize(
    ("values", "legend"),
    [
        ([0.5, 0.25, math.nan, math.nan], "nan since epoch 3"),
        ([0.5, 0.25, math.nan, math.inf], "nan or inf since epoch 3"),
        ([0.5, math.nan, 0.25, -math.inf], "-inf since epoch 4"),
        ([math.nan] * 4, "nan since epoch 1"),
    ],
)
def test_a_line_that_ends_with_no_numbers_says_so(values, legend):
    chart = _chart(values)
    assert _legend(chart) == legend
    if any(map(math.isfinite, values)):
        assert "<span>epoch 1</span><span>4</span>" in chart  # all epochs, not the finite ones


def test_a_line_without_values_is_not_known():
    assert _legend(_chart([])) == "not known"


def test_an_axis_has_the_values_in_it():
    chart = _chart([4.0, 8.0], from_zero=True)
    assert re.findall(r"<span>([\d.]+)</span>", chart)[:3] == ["8", "4", "0"]
    assert 'd="M0.0 150.0L1000.0 0.0"' in chart


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ([-1e308, 1e308], "M0.0 300.0L1000.0 0.0"),
        ([0.0, 5e-324], "M0.0 300.0L1000.0 0.0"),
        ([sys.float_info.max] * 2, "M0.0 0.0L1000.0 0.0"),
        ([-sys.float_info.max] * 2, "M0.0 300.0L1000.0 300.0"),
    ],
)
def test_the_largest_and_the_smallest_numbers_are_drawn(values, path):
    chart = _chart(values)
    assert f'd="{path}"' in chart
    assert "nan" not in chart and "inf" not in chart
