"""The options --tier and --shard: a pytest plugin."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tests import shards, tiers

# What costs the seconds that pure tests save.
_COSTLY = ("tensorflow", "keras", "horovod")


def pytest_addoption(parser):
    group = parser.getgroup("tfdist")
    group.addoption(
        "--tier",
        metavar="NAMES",
        type=_tiers,
        default=tiers.TIERS,
        help=f"run the tests of these tiers only, of {','.join(tiers.TIERS)}",
    )
    group.addoption(
        "--shard",
        metavar="I/N",
        type=_shard,
        help="divide what is selected into N parts of about equal length, and run the Ith",
    )


def _tiers(text):
    names = tuple(text.split(","))
    if not set(names) <= set(tiers.TIERS):
        raise pytest.UsageError(f"--tier takes some of {','.join(tiers.TIERS)}. Received: {text}")
    return names


def _shard(text):
    try:
        return shards.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config):
    for tier in tiers.TIERS:
        config.addinivalue_line("markers", f"{tier}: see tests/tiers.py, which must allow it")


def _is_pure(config):
    return set(config.option.tier) == {"pure"}


def pytest_ignore_collect(collection_path, config):
    """Leaves out files, with what they import, and folders, with their conftest."""
    wanted = set(config.option.tier)
    if wanted == set(tiers.TIERS) or not collection_path.is_relative_to(tiers.ROOT):
        return None
    files = [collection_path]
    if collection_path.is_dir():
        files = collection_path.rglob("test_*.py")
    elif not collection_path.match("test_*.py"):
        return None
    return None if any(wanted & set(_of_path(path)) for path in files) else True


def _of_path(path):
    try:
        return tiers.of_path(path)
    except LookupError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_pycollect_makemodule(module_path, parent):
    """Makes the virtual devices before a test module can start TensorFlow."""
    wanted = set(parent.config.option.tier) & set(_of_path(pathlib.Path(module_path)))
    if wanted - {"pure"}:
        import tests.devices  # noqa: F401


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    before = _imported()
    report = yield
    if _is_pure(collector.config) and _imported() > before:
        # An exception would end a process of pytest-xdist without a word of the reason.
        report.outcome, report.longrepr = "failed", _complaint(collector.nodeid, before)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = _imported()
    result = yield
    if _is_pure(item.config) and _imported() > before:
        pytest.fail(_complaint(item.nodeid, before), pytrace=False)
    return result


def _imported():
    return {name for name in _COSTLY if name in sys.modules}


def _complaint(who, before):
    return f"{who} imports {sorted(_imported() - before)}: what does is not pure (tests/tiers.py)"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out other tiers and shards, after all else has been left out."""
    try:
        of = {item: tiers.of_item(item) for item in items}
    except LookupError as error:
        raise pytest.UsageError(str(error)) from None
    _keep(config, items, [of[item] in config.option.tier for item in items])
    if config.option.shard and items:
        index, count = config.option.shard
        costs = [shards.COST[of[item]] for item in items]
        places = shards.places([shards.unit_of(item) for item in items], costs, count)
        _keep(config, items, [place == index - 1 for place in places])


def _keep(config, items, wanted):
    left_out = [item for item, keep in zip(items, wanted) if not keep]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, keep in zip(items, wanted) if keep]
