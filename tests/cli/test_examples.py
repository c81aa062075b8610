"""The examples in the docstring of the command line run."""

import doctest

from tfdist.cli import main as main_module


def test_examples_run():
    failed, tried = doctest.testmod(main_module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 0
