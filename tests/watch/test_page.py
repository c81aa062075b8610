"""The page and its numbers: what follows from what ranks have measured."""

import dataclasses
import html.parser
import math
import os
import re

import pytest

from tests.watch.runs import rank, run
from tfdist.watch import charts, page
from tfdist.watch.numbers import Epoch, RankNumbers
from tfdist.watch.status import Status

_VOID = {"meta", "path", "link"}


class _Checked(html.parser.HTMLParser):
    """Notes the text, and tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.addresses = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag == "path" and tag not in self.open:
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def _shown(given):
    text = page.as_html(given)
    found = _Checked(text)
    assert not found.open and not found.addresses
    assert "<script" not in text and "http" not in text and "url(" not in text
    return " ".join(found.texts)


def test_the_parts_of_a_step_add_up_to_the_step():
    parts = rank(0.3).parts()
    assert set(parts) == {"compute", "exchange", "update", "data", "between"}
    assert sum(parts.values()) == pytest.approx(0.1)
    assert parts["data"] == pytest.approx((0.95 - 0.3 - 0.5 - 0.05) / 10)
    apart = dataclasses.replace(rank(0.3), exchange=0.0, update=0.0).parts()
    assert set(apart) == {"rest", "compute", "between"}
    assert sum(apart.values()) == pytest.approx(0.1)
    assert set(dataclasses.replace(rank(0.3), compute=None).parts()) == {"rest", "between"}
    assert RankNumbers("host").parts() == {}


def test_the_slowest_rank_and_what_it_costs():
    epoch = run().epochs[-1]
    slowest = epoch.slowest()
    assert slowest.rank == 2
    assert slowest.longer == pytest.approx(0.7 / 0.3)
    assert slowest.waiting == pytest.approx((0.4 + 0.39 + 0.37) / 3)
    assert str(slowest) == (
        "Rank 2 computes 2.3x as long as the fastest one; the others wait 39% of the step."
    )
    found = epoch.history()
    assert found["slowest_rank"] == 2 and found["sent_bytes"] == 4 * 10**6
    assert found["step_seconds"] == pytest.approx(0.1)
    assert dataclasses.replace(epoch, ranks=epoch.ranks[:1]).slowest() is None
    assert dataclasses.replace(epoch, ranks=[None, *epoch.ranks[1:]]).slowest().rank == 2


def test_numbers_travel_as_text_and_a_cut_text_is_nothing():
    text = rank(0.3).text()
    assert RankNumbers.of_text(text.ljust(1024)) == rank(0.3)
    assert RankNumbers.of_text(text[:-1]) is None
    assert len(dataclasses.replace(rank(1 / 3), host="h" * 64).text()) < 1024


def test_the_page_says_what_there_is():
    text = _shown(run(has_ended=True))
    for title in ("Loss and metrics", "Where a step's time goes", "Bytes", "Staleness", "Members"):
        assert title in text
    for title in ("Memory", "Link", "Environment", "Not in this report"):
        assert title in text
    assert "Rank 2 computes 2.3x as long as the fastest one" in text
    assert "That is 38.7 ms of 100 ms." in text
    assert "25.0 times as much" in text
    assert "1,280 samples per second" in text
    assert "Ended after 6 min 0 s." in text


@pytest.mark.parametrize(
    "given",
    [
        run(0),
        run(1),
        run(2, 100),
        dataclasses.replace(run(1), epochs=[Epoch(0, 1.0, {"loss": math.nan}, [None])]),
    ],
    ids=["before an epoch", "one epoch", "100 ranks", "nothing measured"],
)
def test_the_page_of_little_and_of_much(given):
    text = _shown(given)
    assert "Had not ended when this was written" in text
    ranks = len(given.epochs[-1].ranks) if given.epochs else 0
    assert ("Of 100 ranks the first 64 are shown" in text) == (ranks == 100)
    assert ("The first epoch has not ended yet" in text) == (not given.epochs)


def test_names_are_text_and_nothing_else():
    given = run(1)
    given.title = "<script>alert(1)</script> $state"
    given.epochs[0].logs["<b>&\"'"] = 1.0
    given.environment["<i>"] = "</dd><script>"
    text = _shown(given)
    assert "<script>alert(1)</script> $state" in text
    assert "<b>&\"'" in text


def test_values_that_are_not_finite_are_no_points():
    chart = charts.lines("loss", {"loss": [(1, 2.0), (2, math.inf), (3, 1.0)]}, "{:g}".format)
    assert chart.count("dot") == 2
    assert "inf" not in chart and "nan" not in chart
    assert "not finite" in charts.lines("loss", {"loss": [(1, math.nan)]}, str)


def test_an_axis_has_the_values_in_it():
    chart = charts.lines("t", {"a": [(1, 4.0), (2, 8.0)]}, "{:g}".format, from_zero=True)
    assert re.findall(r"<span>([\d.]+)</span>", chart)[:3] == ["8", "4", "0"]
    assert 'd="M0.0 150.0L1000.0 0.0"' in chart


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path, link = tmp_path / "report.html", tmp_path / "link.html"
    path.write_text("old")
    link.symlink_to(path)
    page.write(run(), link)
    assert link.is_symlink() and "Loss and metrics" in path.read_text()
    assert sorted(os.listdir(tmp_path)) == ["link.html", "report.html"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        page.write(run(), tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "link.html", "report.html"]
    with pytest.raises(OSError):
        page.write(run(), tmp_path / "missing" / "report.html")


def test_a_status_in_a_line():
    status = Status("rank 3", 100.0, 2, 7, None, None, 1234.5, 0.5, None, 5 * 10**8)
    assert status.line(101.0) == (
        "rank 3: epoch 2, step 7, 1,234 samples/s, waits 50% for data, 0.50 GB"
    )
    assert status.line(130.0).startswith("rank 3 (silent for 30 s): epoch 2")
    assert Status("worker 1", 100.0, 2, 7).line(100.0) == "worker 1: epoch 2, step 7"
