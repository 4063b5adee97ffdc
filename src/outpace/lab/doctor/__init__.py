"""The doctor: from what a server left behind (logs, a client's figures) to findings, each with what it rests on.

Sources of evidence become `Run`s (`evidence.py`); `collect.py` makes them from logs, and another source would make the
same. Everything after that is arithmetic on runs and knows no log.
"""
