"""The command line: `tfdist run`, `doctor`, `plan` and `replay`, one file per command."""
