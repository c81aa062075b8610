"""Runs one script in several processes on this machine: what `tfdist run` does.

`ranks` makes the environment of each process, `isolation` makes a network for `--isolate`,
`guardian` starts processes so that none is left, `output` shows and keeps what they print
(`banners` says what to leave out), and `job` watches over them: `rank` is what it knows of each,
`signals` what it is told itself.
"""
