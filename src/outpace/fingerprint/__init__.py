"""The machine a figure was taken on, and what changed between two such fingerprints. A figure without one cannot be
compared with another."""

from outpace.fingerprint.collect import commit, machine, one_line

__all__ = ["commit", "machine", "one_line"]
