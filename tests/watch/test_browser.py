"""The report in a browser: nothing is cut off, and everything can be read, in light and dark."""

import os
import pathlib
import shutil

import pytest

from tests.watch.runs import run
from tfdist.watch import page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs Playwright: make browser", exc_type=ImportError
)
_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="needs Chromium: make browser")

_LEAST_CONTRAST = {"text": 4.5, "mark": 3.0}  # WCAG 2.2, 1.4.3 and 1.4.11

# What is seen of the page, by the browser's own account.
_LOOK = """() => {
  const rgb = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)|transparent/.test(colour)) return rgb(colour);
    }
  };
  const seen = [];
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    const style = getComputedStyle(node);
    if (own && node.tagName !== "title")
      seen.push({kind: "text", what: node.textContent.slice(0, 60), right: box.right,
                 clipped: node.scrollWidth > node.clientWidth + 1 && style.display !== "inline",
                 size: parseFloat(style.fontSize), colours: [rgb(style.color), ground(node)]});
    if (node.matches("svg path:not(.grid)"))
      seen.push({kind: "mark", what: node.className.baseVal, right: box.right, clipped: false,
                 size: 99, colours: [rgb(style.stroke), ground(node)]});
    if (node.matches(".bar i"))
      seen.push({kind: "mark", what: node.title, right: box.right, clipped: false, size: 99,
                 colours: [rgb(style.backgroundColor), ground(node.parentElement)]});
  }
  return {seen, width: document.documentElement.scrollWidth,
          ground: ground(document.body), charts: document.querySelectorAll("svg").length};
}"""


def _luminance(colour):
    parts = [value / 255 for value in colour]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(colours):
    low, high = sorted(map(_luminance, colours))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with numbers that are made up, and that of a training."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in ("synthetic", "trained")}
    page.write(run(has_ended=True), found["synthetic"])
    _train(found["trained"])
    return found


def _train(path):
    """Trains on two replicas, with a report at `path`."""
    import keras
    import numpy as np

    import tfdist
    from tests.devices import DEVICES

    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(64, 4))
    given = {"batch_size": 8, "epochs": 3, "validation_data": (x, x[:, :1]), "verbose": 0}
    model.fit(x, x[:, :1], callbacks=strategy.callbacks(report=path), **given)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(("name", "charts", "seen"), [("synthetic", 9, 151), ("trained", 5, 60)])
def test_all_of_the_report_can_be_read(name, charts, seen, width, scheme, browser, pages):
    path = pages[name]
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    view = context.new_page()
    complaints, asked = [], []
    view.on("console", lambda message: complaints.append(message.text))
    view.on("request", lambda request: asked.append(request.url))
    view.goto(path.as_uri())
    found = view.evaluate(_LOOK)
    if folder := os.environ.get("TFDIST_SCREENSHOTS"):
        view.screenshot(path=pathlib.Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()
    assert not complaints and asked == [path.as_uri()]
    assert found["width"] <= width
    assert found["charts"] >= charts and len(found["seen"]) >= seen
    assert (_luminance(found["ground"]) > 0.5) == (scheme == "light")
    for one in found["seen"]:
        assert one["right"] <= width, one
        assert not one["clipped"], one
        assert one["size"] >= 10, one
        assert _contrast(one["colours"]) >= _LEAST_CONTRAST[one["kind"]], one
