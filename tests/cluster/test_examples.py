"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import tfdist.cluster

MODULES = [
    module.name for module in pkgutil.walk_packages(tfdist.cluster.__path__, "tfdist.cluster.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_every_public_name_has_an_example():
    finder = doctest.DocTestFinder(recurse=True)
    for name in set(tfdist.cluster.__all__) - {"Launch"}:
        found = finder.find(getattr(tfdist.cluster, name), name, globs={})
        assert any(test.examples for test in found), name
