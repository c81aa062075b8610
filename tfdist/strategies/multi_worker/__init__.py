"""The backend `multi_worker`: processes that TensorFlow's collective operations connect."""
