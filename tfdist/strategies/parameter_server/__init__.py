"""Variables on parameter servers, and workers that do not wait for each other."""

from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy

__all__ = ["ParameterServerStrategy"]
