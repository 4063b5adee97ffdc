"""Experiments as they should be kept: a hypothesis, one change, whether it was applied, what came of it."""
