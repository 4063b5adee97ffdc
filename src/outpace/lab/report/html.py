"""HTML and SVG as text, put together so that nothing can be left unescaped: what is no `Markup` is text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Markup(str):
    """Text that is markup already. Only `tag` and `join` make it."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. None inside is nothing; an attribute that is None is left out.

    `class_` stands for class, and other underscores for dashes: `stroke_width`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("meta", "br", "rect", "line", "path", "circle") and not inside:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*inside)}</{name}>")


def join(*parts: object, between: str = "") -> Markup:
    """Parts side by side."""
    return Markup(escape(between).join(_escaped(part) for part in parts if part is not None))


def _escaped(part: object) -> str:
    return part if isinstance(part, Markup) else escape(_text(part))


def _text(value: object) -> str:
    """Coordinates need no more than two places. What XML forbids is shown as a replacement character."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff") else "\ufffd" for c in str(value))


def table(head: Sequence[object], rows: Sequence[Sequence[object]], *, numbers_from: int = 1) -> Markup:
    """A table whose columns hold numbers from one on, the first of a row being its name."""

    def kind(place: int) -> str | None:
        return "num" if place >= numbers_from else None

    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *(tag("th", cell, class_=kind(i), scope="col") for i, cell in enumerate(head)))),
            tag(
                "tbody",
                *(
                    tag(
                        "tr",
                        *(
                            tag("th" if i == 0 else "td", cell, class_=kind(i), scope="row" if i == 0 else None)
                            for i, cell in enumerate(row)
                        ),
                    )
                    for row in rows
                ),
            ),
        ),
        class_="wide",
    )
