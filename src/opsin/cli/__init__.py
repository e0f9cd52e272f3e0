"""The command line: parse, settings, call."""
