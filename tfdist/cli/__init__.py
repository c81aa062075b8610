"""The command line: `tfdist run` and `tfdist doctor`, one file per command."""
