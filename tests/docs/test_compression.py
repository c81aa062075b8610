"""The page on compression: its scripts run, and its tables are what the code says."""

import re
import runpy

import numpy as np
import pytest
import tensorflow as tf

from tests.docs.test_guides import DOCS, script, scripts  # noqa: F401
from tfdist import compression

PAGE = "compression.md"


def rows(table):
    """The cells of the table between the markers called `table`, without its head."""
    text = (DOCS / PAGE).read_text()
    (found,) = re.findall(rf"<!-- {table}:begin -->\n(.*?)<!-- {table}:end -->", text, re.S)
    lines = found.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture
def runs(script):  # noqa: F811
    """Runs a script of the page, on four devices; returns its variables."""
    return lambda name: runpy.run_path(str(script(PAGE, name)), run_name="__main__")


def test_all_scripts_are_tested():
    assert set(scripts(PAGE)) == {"train.py", "options.py", "loop.py", "traffic.py", "randomk.py"}


def test_a_model_trains_and_is_saved(runs, tmp_path):
    logs = runs("train.py")["history"].history
    assert logs["loss"][-1] < logs["loss"][0]
    assert logs["compression_ratio"][-1] > 2
    assert (tmp_path / "model.keras").exists()


def test_options_are_options(runs):
    runs("options.py")


@pytest.mark.full
def test_a_loop_trains(runs):
    variables = runs("loop.py")
    optimizer = variables["optimizer"]
    assert int(optimizer.iterations.numpy()) == 4
    assert [unit.compressor.name for unit in optimizer.compressed.units] == ["topk"]


def test_every_compressor_is_in_the_table():
    found = {}
    for name, cls, size, aggregation, unbiased, feedback, _ in rows("compressors"):
        found[name.strip("`")] = (cls.strip("`"), size, aggregation, unbiased, feedback)
    expected = {}
    for name in compression.available():
        compressor = compression.get(name, **({"not_training": True} if name == "noop" else {}))
        if not type(compressor).__module__.startswith("tfdist."):
            continue
        size = compressor.wire_bytes(tf.TensorSpec([1024, 1024], tf.float32)) / 2**20
        expected[name] = (
            type(compressor).__name__,
            f"{size:.3f}",
            compressor.aggregation,
            "yes" if compressor.unbiased else "no",
            "yes" if compressor.error_feedback else "no",
        )
    assert found == expected


def test_the_table_of_traffic_is_what_its_script_prints(runs, capsys):
    runs("traffic.py")
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in printed] == rows(
        "traffic"
    )


@pytest.mark.full
def test_random_elements_diverge_with_momentum_and_not_without(runs, capsys):
    runs("randomk.py")
    lines = re.findall(r"^([\d.]+) (\w+) (.*)$", capsys.readouterr().out, re.M)
    found = {(float(m), name): np.array(values.split(), float) for m, name, values in lines}
    assert found[0.9, "loss"][-1] > 10 * found[0.9, "loss"][0]
    assert found[0.0, "loss"][-1] < 0.3 * found[0.0, "loss"][0]
    for momentum in (0.9, 0.0):
        assert (found[momentum, "compression_cosine"][1:] < 0.05).all()
