"""The backend `parameter_server`, described without importing TensorFlow."""

from tfdist.cluster.places import clustered
from tfdist.strategies.backend import Backend, Launch

PARAMETER_SERVER = Backend(
    name="parameter_server",
    strategy="tfdist.strategies.parameter_server.strategy:ParameterServerStrategy",
    engine="TensorFlow's parameter servers",
    obstacle=lambda found: found.servers or found.port,
    launch=Launch(clustered, "Workers of parameter servers train", has_servers=True),
    is_asynchronous=True,
)
