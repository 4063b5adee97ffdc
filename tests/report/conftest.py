from __future__ import annotations

from browser import browser, page  # noqa: F401  fixtures
