"""The backend `horovod`: processes that Horovod connects."""
