"""The backend `mirrored`, described without importing TensorFlow."""

from tfdist.strategies.backend import Backend

MIRRORED = Backend(
    name="mirrored",
    strategy="tfdist.strategies.mirrored.strategy:MirroredStrategy",
    engine="the devices of one machine",
    obstacle=lambda found: found.tensorflow,
)
