"""The registry of backends: everything that lists them reads it."""

import pathlib
import subprocess
import sys

import pytest

import tfdist
from tests.equivalence.columns import COLUMNS
from tfdist.cli.run import run
from tfdist.engines.contract import Engine
from tfdist.strategies.keras_strategy import KerasStrategy
from tfdist.strategies.registry import BACKENDS, LAUNCHED

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda backend: backend.name)
def test_a_backend_is_a_public_strategy_in_docs_and_in_the_equivalence_table(backend):
    strategy = backend.load()
    assert issubclass(strategy, KerasStrategy)
    assert getattr(tfdist, strategy.__name__) is strategy
    assert f"tfdist.{strategy.__name__}\n" in (DOCS / "api" / "strategies.md").read_text()
    assert backend.name in {column.strategy for column in COLUMNS}
    assert backend.name in tfdist.Strategy.__doc__


def test_what_tfdist_run_offers_is_what_the_registry_launches():
    (option,) = [p for p in run.params if p.name == "strategy"]
    assert list(option.type.choices) == list(LAUNCHED)
    assert next(iter(LAUNCHED)) == "multi_worker"


def test_the_registry_needs_no_tensorflow():
    code = "import sys, tfdist.strategies.registry; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_synchronous_strategy_has_an_engine():
    operations = {name for name in vars(Engine) if name[0] != "_"} - {"processes"}
    strategy = tfdist.MirroredStrategy()
    for name in operations | {"processes", "largest_message"}:
        assert hasattr(strategy.engine, name), name
    assert strategy.engine.processes is strategy.processes
