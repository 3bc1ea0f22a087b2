"""Runners: flags, then a call into the library."""
