"""What the command's exit code means where it is not 0, or 1 in the command's own sense."""

from __future__ import annotations

REFUSED = 2
"""The line on stderr says what and why."""
INTERRUPTED = 130
"""By Ctrl-C, or in training by SIGTERM or SIGHUP; what was measured until then has been printed, where a command keeps
it."""
PIPE_CLOSED = 141
"""Whoever read stdout went away."""
