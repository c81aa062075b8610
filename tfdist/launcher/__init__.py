"""Runs one script in several processes on this machine: what `tfdist run` does.

`ranks` makes the environment of each process, and `isolation` makes a network for `--isolate`.
`guardian` starts the processes so that none is left behind. `output` shows and keeps what they
print; `banners` says which lines to leave out. `job` watches over the processes: `rank` is what it
knows of each process, and `signals` receives the signals to the launcher itself.
"""
