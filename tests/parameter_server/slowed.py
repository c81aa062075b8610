"""Trains with workers of different speeds under a policy; prints what was applied, and when.

python -m tests.parameter_server.slowed POLICY
"""

import json
import sys

import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder
from tfdist.staleness import SSP, Bounded

POLICIES = {
    "drop": Bounded(1),
    "wait": Bounded(3, on_exceed="wait"),
    "ssp": SSP(1),
}


def generated():
    yield from range(20)
    raise ValueError("a broken record")


def main():
    with tfdist.cluster.local_cluster(workers=3, ps=1) as resolver:
        strategy = tfdist.ParameterServerStrategy(
            resolver, staleness=POLICIES[sys.argv[1]], input="dynamic"
        )
        with strategy.scope():
            model = Counting([0.08, 0.01, 0.0])
            model.compile(Recorder())
        model.built = True
        data = tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)
        model.fit(data, epochs=3, verbose=0)
        report = strategy.staleness_report()
        kind = tf.TensorSpec((), tf.int64)
        broken = tf.data.Dataset.from_generator(generated, output_signature=kind)
        facts = model.facts()
        try:
            model.fit(broken.batch(4), verbose=0)
        except tf.errors.OpError as error:
            facts["error"] = [str(error), getattr(error, "__notes__", [])]
    facts["reported"] = sorted(report.histogram.elements())
    facts["dropped"] = report.drops
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
