"""Metrics and logs. Open to all packages; knows only core."""
