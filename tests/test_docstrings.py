"""The examples in the public docstrings run."""

import doctest

import pytest

import tfdist
from tests.parameter_server import scenarios
from tfdist import compression, staleness
from tfdist.compression import bits, traffic
from tfdist.strategies.parameter_server.report import StalenessReport
from tfdist.strategies.processes import Processes

# What is left out are the interface's types, which have no use by themselves.
_COMPRESSION = set(compression.__all__) - {
    "Compressor",
    "Exchange",
    "Payload",
    "Result",
    "State",
    "Step",
}
_POLICIES = set(staleness.__all__) - {"Policies", "StalenessPolicy"}
_PUBLIC = {
    "Strategy": tfdist.Strategy,
    "MirroredStrategy": tfdist.MirroredStrategy,
    "MultiWorkerMirroredStrategy": tfdist.MultiWorkerMirroredStrategy,
    "HorovodStrategy": tfdist.HorovodStrategy,
    "DistributedOptimizer": tfdist.DistributedOptimizer,
    "scale_loss": tfdist.scale_loss,
    "CompressionMonitor": tfdist.callbacks.CompressionMonitor,
    "BroadcastGlobalVariables": tfdist.callbacks.BroadcastGlobalVariables,
    "LearningRateWarmup": tfdist.callbacks.LearningRateWarmup,
    "MetricAverage": tfdist.callbacks.MetricAverage,
    "TerminateOnNaN": tfdist.callbacks.TerminateOnNaN,
    "Processes.sum": Processes.sum,
    "Processes.all_gather": Processes.all_gather,
    "Processes.all_gather_texts": Processes.all_gather_texts,
    "Processes.broadcast": Processes.broadcast,
    "virtual_devices": tfdist.testing.virtual_devices,
    **{f"compression.{name}": getattr(compression, name) for name in sorted(_COMPRESSION)},
    "compression.sent_bytes": traffic.sent_bytes,
    "compression.gather_pays_until": traffic.gather_pays_until,
    "compression.digits_per_byte": bits.digits_per_byte,
    **{f"staleness.{name}": getattr(staleness, name) for name in sorted(_POLICIES)},
    "StalenessReport": StalenessReport,
}
# What needs a cluster is run where there is one.
_IN_A_CLUSTER = set(scenarios.EXAMPLES)


@pytest.mark.parametrize("name", _PUBLIC)
def test_example_runs(name):
    thing = _PUBLIC[name]
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_every_public_name_has_a_docstring_and_an_example():
    documented = set(_PUBLIC) | _IN_A_CLUSTER
    modules = {"callbacks", "cluster", "compression", "staleness", "testing"}
    names = set(tfdist.__all__) - modules - {"Options"}
    assert names | set(tfdist.callbacks.__all__) <= documented
