"""How soon a process that dies is started again, and when no more."""

from __future__ import annotations

from outpace.server.engine_client.restarts import WINDOW, Restarts


def test_restarts_come_slower_and_end() -> None:
    now = [0.0]
    restarts = Restarts(3, clock=lambda: now[0])
    assert [restarts.after_death(served=True) for _ in range(4)] == [0.2, 0.4, 0.8, None]
    now[0] = WINDOW + 1
    assert restarts.after_death(served=True) == 0.2
    assert Restarts(0).after_death(served=True) is None
    many = Restarts(100)
    assert max(filter(None, (many.after_death(served=True) for _ in range(50)))) == 30.0
