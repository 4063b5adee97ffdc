"""The engine as the HTTP side has it: a process that runs and is started again, and what it was asked for.

`client` keeps a `child` alive, `desk` has the answers under way (`jobs`): those in the engine, and those that wait.
"""
