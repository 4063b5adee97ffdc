"""Ranks that share one model: their group and its collectives, NCCL's settings, and the processes they run in."""
