"""What may be asked, and what it is to the engine.

A body becomes a request of `protocol`, which refuses what it does not know; `sampling` makes the engine's parameters of
it, `structured` and `tools` the grammar that holds the answer.
"""
