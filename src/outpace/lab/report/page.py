"""The page: what a manager reads first, then every result, then the machines. One file, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.lab.report.files import Source
from outpace.lab.report.html import Markup, tag
from outpace.lab.report.sections import fingerprint, section
from outpace.lab.report.sentences import Lead, leads
from outpace.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For browsers: even if something slipped in, it could neither run nor fetch."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #fff; --ink: #16191d; --dim: #5b6470; --line: #dde1e6;
  --draft: #b35c00; --verify: #1f6feb; --accept: #14804a; --gaps: #9aa4b0; --good: #14804a; --bad: #c2261d;
  --violet: #7a4fd0; --teal: #0b7d86; --ochre: #8a6d00; --rose: #b8387f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #101317; --card: #181c22; --ink: #e8ebef; --dim: #98a2ae; --line: #2b323b;
    --draft: #f0913a; --verify: #5a9cff; --accept: #3fbf7a; --gaps: #5e6875; --good: #3fbf7a; --bad: #ff6b60;
    --violet: #a98bf0; --teal: #3fb9c4; --ochre: #cfae3a; --rose: #f07ab8;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.25rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums; }
h1 { margin: 0 0 1rem; font-size: 1.35rem; }
h2 { margin: 0; font-size: 1.05rem; overflow-wrap: anywhere; }
h3 { margin: 1.1rem 0 .4rem; font-size: .9rem; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.1rem;
  margin-bottom: 1rem; }
.short p { font-size: 1.08rem; } .short .lead { font-size: 1.25rem; font-weight: 650; }
.short p + .lead { margin-top: 1.1rem; }
.short .note { font-weight: 400; }
.note { color: var(--dim); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; margin: .5rem 0; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-top: 1px solid var(--line); vertical-align: top;
  font-weight: 400; }
thead th { border: 0; color: var(--dim); }
.num { text-align: right; white-space: nowrap; }
td { overflow-wrap: anywhere; }
.depth0 { font-weight: 650; } .depth1 { padding-left: .8rem; font-weight: 600; }
.depth2 { padding-left: 1.9rem; color: var(--dim); }
.drawing { display: block; width: 100%; height: auto; margin: .4rem 0; }
.drawing text { font-size: 13px; fill: var(--ink); } .drawing .dim { fill: var(--dim); }
.drawing .on { fill: var(--card); font-weight: 600; }
.interval { stroke: var(--ink); stroke-width: 2; } .mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.draft { fill: var(--draft); background: var(--draft); } .verify { fill: var(--verify); background: var(--verify); }
.accept { fill: var(--accept); background: var(--accept); } .gaps { fill: var(--gaps); background: var(--gaps); }
.unexplained { fill: var(--bad); background: var(--bad); } .plain { fill: var(--dim); }
.part0 { fill: var(--verify); background: var(--verify); } .part1 { fill: var(--draft); background: var(--draft); }
.part2 { fill: var(--violet); background: var(--violet); } .part3 { fill: var(--accept); background: var(--accept); }
.part4 { fill: var(--teal); background: var(--teal); } .part5 { fill: var(--ochre); background: var(--ochre); }
.part6 { fill: var(--rose); background: var(--rose); } .part7 { fill: var(--gaps); background: var(--gaps); }
.gain { fill: var(--good); } .loss { fill: var(--bad); } .here { stroke: var(--ink); stroke-width: 2.5; }
.legend span { display: inline-block; margin-right: 1rem; font-size: .85rem; color: var(--dim); }
.box { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .35em; }
details { margin: .4rem 0; } summary { cursor: pointer; }
@media print { section { break-inside: avoid; } }
"""


def page(sources: Sequence[Source]) -> str:
    """The whole file."""
    told = leads(sources)
    machines = [folded for source in sources if (folded := fingerprint(source)) is not None]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Outpace report"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("h1", "Outpace report"),
        tag("section", *(part for each in told for part in _short(each)), class_="short"),
        *map(section, sources),
        tag("section", tag("h2", "Machines and settings"), *machines) if machines else None,
        tag("p", f"outpace {__version__}", class_="note"),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _short(lead: Lead) -> list[Markup]:
    """The first sentence stands out, and names the file that all of them rest on."""
    first, *others = lead.sentences
    name = tag("span", f" ({lead.name})", class_="note") if lead.name is not None else None
    return [tag("p", first, name, class_="lead"), *(tag("p", text) for text in others)]
