"""The page and its numbers: what follows from what ranks have measured."""

import dataclasses
import html.parser
import math
import os
import re

import pytest

from tests.watch.runs import rank, run
from tfdist.watch import page, summary
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


def test_a_loss_that_became_nan_is_told_first():
    given = run(4)
    for epoch, value in zip(given.epochs, (0.5, 0.25, math.nan, math.inf)):
        epoch.logs["loss"] = epoch.logs["of_user"] = value
    first, *others = summary.found(given)
    assert first == "loss, of_user: nan or inf since epoch 3."
    assert not any("since epoch" in text for text in others)
    assert first in _shown(given)


@pytest.mark.parametrize(
    ("numbers", "wanted", "has_ended", "state", "callout"),
    [
        ([10], 12, False, "Epoch 11 of 12 is done. Begun at ", ""),
        ([10, 11], 12, True, "2 epochs. Begun at ", ""),
        ([], 12, False, "0 epochs. Begun at ", "The first epoch has not ended yet."),
        ([], 0, True, "0 epochs. Begun at ", "There was no epoch."),
    ],
)
def test_how_far_a_run_is(numbers, wanted, has_ended, state, callout):
    epochs = [Epoch(number, 1000.0, {"loss": 1.0}, []) for number in numbers]
    given = dataclasses.replace(run(0), epochs=epochs, wanted=wanted, has_ended=has_ended)
    assert summary.state(given).startswith(state)
    assert list(summary.found(given)) == ([callout] if callout else [])
    assert _shown(given)


def test_earlier_runs_of_the_callback_are_told():
    assert "the callback has seen a `fit` before" in _shown(run(earlier=1))
    assert "the callback has seen 2 calls of `fit` before" in _shown(run(earlier=2))
    assert "before" not in " ".join(summary.found(run()))


def test_metrics_of_the_user_stay_loss_and_metrics():
    given = run(metrics={"loss", "staleness", "step_seconds"})
    for epoch in given.epochs:
        epoch.logs.update(step_seconds=77.0, waiting=88.0)
    section = page.as_html(given).partition("Loss and metrics")[2].partition("<section>")[0]
    titles = re.findall("<figcaption>(.*?)</figcaption>", section)
    assert {"loss", "staleness", "step_seconds"} <= set(titles)
    assert not {"waiting", "staleness_max", "replicas"} & set(titles)
    assert page.as_html(given).count("<figcaption>staleness</figcaption>") == 1


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
