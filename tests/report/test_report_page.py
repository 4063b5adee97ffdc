"""The report in a real browser: it opens from disk without a network, draws what it says, and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from cli.golden import DATA
from lab.records import gpu_profile
from outpace.lab.report.files import Source, read
from outpace.lab.report.page import page as report

EVIL = """</title></style><script>document.title = "taken"</script><img src=x onerror='document.title = "taken"'>"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> str:
    evil = replace(gpu_profile(), model=EVIL, notes=(EVIL,), machine={EVIL: EVIL})
    results = [
        Source(name="profile.json", result=gpu_profile()),
        *read([DATA / "breakeven.json", DATA / "doctor.json", DATA / "bench.json"]),
        Source(name=EVIL, result=evil),
    ]
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report(results), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def tab(page: Page, opened: str) -> Iterator[Page]:
    """The report, and that nothing but itself was asked for."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(opened)
    yield page
    assert asked == [opened]


def test_what_a_manager_reads_comes_first(tab: Page) -> None:
    first = tab.locator("section").first
    assert first.locator("p.lead").count() == 5, "each result speaks for itself"
    assert "514.9 tok/s against 232.5 plain" in first.locator("p.lead").first.inner_text()


def test_bars_are_as_long_as_their_figures(tab: Page) -> None:
    bar = tab.locator("svg").first
    widths = {}
    for phase in ("draft", "verify", "accept"):
        box = bar.locator(f"rect.{phase}").first.bounding_box()
        assert box is not None
        widths[phase] = box["width"]
    assert widths["verify"] / widths["draft"] == pytest.approx(4.30 / 0.67, rel=0.01)
    plain = bar.locator("rect.plain").bounding_box()
    assert plain is not None and plain["width"] / widths["verify"] == pytest.approx(4.301 / 4.30, rel=0.01)


def test_the_map_frames_where_it_stands_and_tells_gain_from_loss(tab: Page) -> None:
    heat = tab.locator("section", has_text="from breakeven.json").locator("svg")
    assert heat.locator("rect").count() == 8 * 7
    assert heat.locator("rect.here title").text_content() == "2.00, 2.42: 0.83× plain"
    assert "loss" in (heat.locator("rect.here").get_attribute("class") or "")

    def colour(kind: str) -> str:
        found: str = heat.locator(f"rect.{kind}").first.evaluate("cell => getComputedStyle(cell).fill")
        return found

    assert colour("gain") != colour("loss")


def test_markup_from_files_is_shown_and_not_run(tab: Page) -> None:
    assert tab.title() == "Outpace report"
    assert tab.locator("script, img, iframe, object").count() == 0
    assert tab.get_by_text('document.title = "taken"').count() >= 3
    assert tab.evaluate(
        "Array.from(document.querySelectorAll('*')).every(e => ![...e.attributes].some(a => /^on/.test(a.name)))"
    )


@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_sticks_out(tab: Page, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_it_is_dark_where_that_is_wished(tab: Page) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        grounds.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(246, 247, 249)", "rgb(16, 19, 23)"]


def test_machines_are_folded_away_and_open_without_scripts(browser: Browser, opened: str) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    tab = context.new_page()
    tab.goto(opened)
    folded = tab.locator("details").first
    assert not folded.get_by_text("a processor").is_visible()
    folded.locator("summary").click()
    assert folded.get_by_text("a processor").is_visible()
    context.close()
