"""Keras callbacks for distributed training."""

from tfdist.callbacks.broadcast import BroadcastGlobalVariables
from tfdist.callbacks.compression_monitor import CompressionMonitor
from tfdist.callbacks.drift import Drift
from tfdist.callbacks.learning_rate_warmup import LearningRateWarmup
from tfdist.callbacks.metric_average import MetricAverage
from tfdist.callbacks.run_report import RunReport
from tfdist.callbacks.staleness_monitor import StalenessMonitor
from tfdist.callbacks.straggler_monitor import StragglerMonitor
from tfdist.callbacks.terminate_on_nan import TerminateOnNaN
from tfdist.callbacks.timeline import Timeline

__all__ = [
    "BroadcastGlobalVariables",
    "CompressionMonitor",
    "Drift",
    "LearningRateWarmup",
    "MetricAverage",
    "RunReport",
    "StalenessMonitor",
    "StragglerMonitor",
    "TerminateOnNaN",
    "Timeline",
]
