"""A headless Chromium for tests of what people look at. `scripts/browser` installs it; without one these tests fail.

A folder's conftest imports `browser` and `page`; its tests ask for `page`. Playwright drives the browser over its own
protocol; its loop occupies the thread as long as the browser runs, so such a module must not call `asyncio.run`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PATIENCE_MS = 60_000
"""Before something that must come is given up: a busy machine is no failure."""
FLAGS = (
    "--no-sandbox",  # CI is root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It would otherwise look for its maker's hosts at every start.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str:
    """The browser's path: OUTPACE_BROWSER, or the first of the usual names."""
    found = os.environ.get("OUTPACE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("no browser: run scripts/browser, or name one in OUTPACE_BROWSER")
    return found


expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module's tests."""
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=executable(), args=FLAGS, timeout=2 * PATIENCE_MS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab with storage of its own. A test during which the page complains on its console fails at its end."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    yield tab
    context.close()
    assert not [text for text in complaints if not expected(text)], complaints


def expected(complaint: str) -> bool:
    """Chromium itself notes on the console what no script can keep from it: answers that are errors, lost servers."""
    return complaint.startswith("Failed to load resource:")
