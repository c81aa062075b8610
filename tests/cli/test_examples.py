"""The examples in the docstrings of the command line run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["main", "run", "doctor", "examination"])
def test_examples_run(name):
    module = importlib.import_module(f"tfdist.cli.{name}")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
