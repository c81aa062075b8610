"""What keeps the processes of one training job together outside of its steps.

In each process callbacks make their own decisions, write files and show progress. Ctrl-C and errors
reach only one process. This package turns all that into one decision, one set of files and one
error.
"""
