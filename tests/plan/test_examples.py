"""The examples in the docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["algorithms", "simulation.compute_times", "simulation.simulate"])
def test_examples_run(name):
    module = importlib.import_module(f"tfdist.plan.{name}")
    failed, tried = doctest.testmod(module)
    assert failed == 0 and tried > 0
