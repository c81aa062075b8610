"""The backend `multi_worker`, described without importing TensorFlow."""

import contextlib

from tfdist.cluster.machines import clustered_across
from tfdist.cluster.places import clustered
from tfdist.strategies.backend import Backend, Launch

MULTI_WORKER = Backend(
    name="multi_worker",
    strategy="tfdist.strategies.multi_worker.strategy:MultiWorkerMirroredStrategy",
    engine="TensorFlow's collective operations",
    obstacle=lambda found: found.tensorflow or found.launch or found.peers_port,
    mesh="tfdist.strategies.multi_worker.mesh:engines",
    launch=Launch(
        clustered,
        has_reducers=True,
        across=clustered_across,
        elastic=lambda host, ranks: contextlib.nullcontext([{} for _ in ranks]),
    ),
)
