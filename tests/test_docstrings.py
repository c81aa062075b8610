"""The examples in the public docstrings run."""

import doctest
import os
import subprocess
import sys

import pytest

import tfdist
from tfdist import compression, staleness, tensor_parallel
from tfdist.compression import bits, traffic
from tfdist.engines.processes import Processes
from tfdist.parameter_server.report import StalenessReport

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
    "local_step": tfdist.local_step,
    "LocalSGD": tfdist.LocalSGD,
    "DiLoCo": tfdist.DiLoCo,
    "Drift": tfdist.callbacks.Drift,
    "CompressionMonitor": tfdist.callbacks.CompressionMonitor,
    "BroadcastGlobalVariables": tfdist.callbacks.BroadcastGlobalVariables,
    "LearningRateWarmup": tfdist.callbacks.LearningRateWarmup,
    "MetricAverage": tfdist.callbacks.MetricAverage,
    "SidecarEvaluator": tfdist.SidecarEvaluator,
    "RunReport": tfdist.callbacks.RunReport,
    "StragglerMonitor": tfdist.callbacks.StragglerMonitor,
    "TerminateOnNaN": tfdist.callbacks.TerminateOnNaN,
    "Timeline": tfdist.callbacks.Timeline,
    "Processes.sum": Processes.sum,
    "Processes.all_gather": Processes.all_gather,
    "Processes.all_gather_texts": Processes.all_gather_texts,
    "Processes.broadcast": Processes.broadcast,
    "virtual_devices": tfdist.testing.virtual_devices,
    "estimate": tfdist.memory.estimate,
    "stages": tfdist.pipeline.stages,
    **{name: getattr(tensor_parallel, name) for name in tensor_parallel.__all__},
    **{f"compression.{name}": getattr(compression, name) for name in sorted(_COMPRESSION)},
    "compression.sent_bytes": traffic.sent_bytes,
    "compression.gather_pays_until": traffic.gather_pays_until,
    "compression.digits_per_byte": bits.digits_per_byte,
    **{f"staleness.{name}": getattr(staleness, name) for name in sorted(_POLICIES)},
    "StalenessReport": StalenessReport,
}
# What starts a cluster needs a process of its own: TensorFlow cannot stop the servers.
_WITH_A_CLUSTER = {
    "ParameterServerStrategy": tfdist.ParameterServerStrategy,
    "StalenessMonitor": tfdist.callbacks.StalenessMonitor,
    "local_cluster": tfdist.cluster.local_cluster,
}


def assert_example_runs(name, thing):
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", _PUBLIC)
def test_example_runs(name):
    assert_example_runs(name, _PUBLIC[name])


def test_examples_with_a_cluster_run():
    command = [sys.executable, "-m", "tests.test_docstrings"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_public_name_has_a_docstring_and_an_example():
    documented = {*_PUBLIC, *_WITH_A_CLUSTER}
    modules = {"callbacks", "cluster", "compression", "memory", "pipeline", "staleness", "testing"}
    modules |= {"tensor_parallel"}
    names = set(tfdist.__all__) - modules - {"Options"}
    assert names | set(tfdist.callbacks.__all__) <= documented


if __name__ == "__main__":
    for cluster_name, with_a_cluster in _WITH_A_CLUSTER.items():
        assert_example_runs(cluster_name, with_a_cluster)
    sys.stdout.flush()
    os._exit(0)
