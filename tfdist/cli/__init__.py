"""The command line: `tfdist run`, `tfdist doctor` and `tfdist replay`, one file per command."""
