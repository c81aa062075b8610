"""Results of all columns."""

import functools

import pytest

from tests.equivalence import cells, columns, harness
from tests.equivalence.job import Job
from tests.equivalence.ranks import Ranks
from tests.equivalence.results import Result


@pytest.fixture(autouse=True)
def _fresh_keras_state():
    """Stands in for the suite's fixture of this name: each training clears up after itself."""


class Results:
    """The results of the columns; each is computed once in a test session.

    Args:
        folder: for files.
        shared: for what is trained in this process.
        wanted: the names of the features that the session tests, by column.
    """

    def __init__(self, folder, shared, wanted):
        self._folder = folder
        self._shared = shared
        self._wanted = wanted
        self._jobs = {}

    def reference(self, feature, jit_compile=False):
        """The outcome on one device."""

        def compute():
            try:
                return Result(harness.train_on_one_device(feature, jit_compile), [])
            finally:
                harness.forget()

        device = "one compiled device" if jit_compile else "one device"
        return self._shared.get((device, feature.name), compute).outcome

    def of(self, column, feature):
        """The results of the column's processes, by rank."""
        if not column.in_own_processes:
            compute = functools.partial(column.train, feature)
            return [self._shared.get((column.name, feature.name), compute)]
        if column.name not in self._jobs:
            ranks = Ranks(
                column.name, column.launcher, column.processes, column.devices, column.reducers
            )
            folder = self._folder / column.name
            self._jobs[column.name] = Job(ranks, self._wanted[column.name], folder)
        return self._jobs[column.name].result(feature.name)

    def stop(self):
        for started in self._jobs.values():
            started.stop()


@pytest.fixture(scope="session")
def results(request, shared_folder, shared):
    harness.keep_imports_out_of_collections()
    wanted = {name: [] for name in columns.BY_NAME}
    for item in request.session.items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        if parameters and {"column", "feature"} <= set(parameters):
            wanted[parameters["column"].name].append(parameters["feature"].name)
    results = Results(shared_folder, shared, wanted)
    yield results
    results.stop()


class Measured:
    """Keeps the cells of an interrupted `make equivalence`, and adds to them.

    Args:
        found: their file.
    """

    def __init__(self, found):
        self._found = found

    def pytest_collection_modifyitems(self, config, items):
        """Leaves out what is measured already, and passed."""
        measured = [item for item in items if self._is_measured(**item.callspec.params)]
        config.hook.pytest_deselected(items=measured)
        items[:] = [item for item in items if item not in measured]

    def _is_measured(self, column, feature):
        cell = self._found.ours.get(column.name, {}).get(feature.name)
        return cell is not None and cell.passed

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        if report.when == "call" and not report.skipped and "column" in properties:
            cell = cells.of_test(report.passed, properties)
            self._found.add(properties["column"], properties["feature"], cell)


def pytest_configure(config):
    found = cells.Cells.of_environment()
    runs_tests = hasattr(config, "workerinput")
    if found is not None and runs_tests:
        config.pluginmanager.register(Measured(found))
