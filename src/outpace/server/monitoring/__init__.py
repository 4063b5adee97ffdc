"""How a server does, for those who run it: log lines, metrics, the last requests."""
