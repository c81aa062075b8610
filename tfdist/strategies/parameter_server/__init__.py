"""The backend `parameter_server`: workers that do not wait for each other."""
