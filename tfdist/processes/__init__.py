"""What keeps the processes of one training job together outside of its steps.

Callbacks decide in each process by themselves, write files and show progress; Ctrl-C and errors
reach one process. Here that becomes one decision, one set of files and one error.
"""
