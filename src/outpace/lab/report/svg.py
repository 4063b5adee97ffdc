"""The report's drawings: bars that add up, bars with intervals, maps of cells. Plain SVG in the page's own colours.

Every drawing has a title for who cannot see it, and its figures stand in it or beside it as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outpace.lab.report.html import Markup, tag

WIDTH = 720.0
LEFT = 150.0
"""Room for names of rows."""
ROW = 30.0
RIGHT = 90.0
"""Room for figures behind a bar."""
CELL = 30.0
HEAD = 48.0
"""Room for the axes of a map and the names of its columns."""


def stacked(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], unit: str) -> Markup:
    """One bar a row, of (name, length, colour class) pieces; below 0 counts as nothing."""
    longest = max((sum(max(0.0, length) for _, length, _ in pieces) for _, pieces in rows), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    drawn = []
    for place, (name, pieces) in enumerate(rows):
        top, x = place * ROW + 4.0, LEFT
        drawn.append(_name(name, top))
        for piece, length, colour in pieces:
            wide = max(0.0, length) * scale
            label = f"{name}, {piece}: {length:.3f} {unit}"
            drawn.append(tag("rect", tag("title", label), x=x, y=top, width=wide, height=ROW - 8, class_=colour))
            if wide > 46:
                drawn.append(
                    tag("text", f"{length:.2f}", x=x + wide / 2, y=top + 15, class_="on", text_anchor="middle")
                )
            x += wide
        total = sum(length for _, length, _ in pieces)
        drawn.append(tag("text", f"{total:.2f} {unit}", x=x + 6, y=top + 15))
    return _drawing(title, len(rows) * ROW + 4.0, drawn)


def legend(colours: Mapping[str, str]) -> Markup:
    """Names, each beside its colour class."""
    named = (tag("span", tag("i", class_=f"box {colour}"), name) for name, colour in colours.items())
    return tag("p", *named, class_="legend")


def bars(
    title: str,
    rows: Sequence[tuple[str, float, float | None, float | None]],
    unit: str,
    colour: str = "verify",
    most: float | None = None,
    mark: float | None = None,
) -> Markup:
    """One bar a row: name, value, and the ends of its interval where there is one; a line down at `mark`."""
    longest = most or max((max(value, high or 0.0) for _, value, _, high in rows), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    drawn = []
    for place, (name, value, low, high) in enumerate(rows):
        top = place * ROW + 4.0
        drawn.append(_name(name, top))
        drawn.append(tag("rect", x=LEFT, y=top, width=max(0.0, value) * scale, height=ROW - 8, class_=colour))
        end = LEFT + max(value, high or 0.0) * scale
        if low is not None and high is not None:
            middle = top + (ROW - 8) / 2
            drawn.append(
                tag("line", x1=LEFT + low * scale, x2=LEFT + high * scale, y1=middle, y2=middle, class_="interval")
            )
        drawn.append(tag("text", f"{value:.2f}{'' if unit == '×' else ' '}{unit}".strip(), x=end + 6, y=top + 15))
    if mark is not None:
        x = LEFT + mark * scale
        drawn.append(tag("line", x1=x, x2=x, y1=0.0, y2=len(rows) * ROW, class_="mark"))
    return _drawing(title, len(rows) * ROW + 4.0, drawn)


def cells(
    axes: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    notes: Sequence[Sequence[str]] = (),
    here: tuple[int, int] | None = None,
) -> Markup:
    """A map: above 1 in the colour of gain, below in that of loss, the stronger the further; `here` is framed.

    Args:
        axes: what rows and columns are.
    """
    wide = min(84.0, (WIDTH - LEFT) / max(1, len(columns)))
    down, across = axes
    drawn = [
        tag("text", f"{down} ↓", x=0.0, y=16.0, class_="dim"),
        tag("text", f"{across} →", x=LEFT + wide * len(columns), y=16.0, text_anchor="end", class_="dim"),
    ]
    drawn += [
        tag("text", column, x=LEFT + wide * (place + 0.5), y=HEAD - 8.0, text_anchor="middle", class_="dim")
        for place, column in enumerate(columns)
    ]
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        top = HEAD + row * CELL
        drawn.append(tag("text", name, x=LEFT - 10, y=top + 19, text_anchor="end", class_="dim"))
        for column, value in enumerate(line):
            x, framed = LEFT + column * wide, here == (row, column)
            note = notes[row][column] if notes else ""
            drawn.append(
                tag(
                    "rect",
                    tag("title", f"{name}, {columns[column]}: {value:.2f}× plain {note}".strip()),
                    x=x + 1,
                    y=top + 1,
                    width=wide - 2,
                    height=CELL - 2,
                    class_=("gain" if value >= 1.0 else "loss") + (" here" if framed else ""),
                    fill_opacity=_strength(value),
                )
            )
            drawn.append(
                tag(
                    "text", f"{value:.2f}{' ' + note if note else ''}", x=x + wide / 2, y=top + 19, text_anchor="middle"
                )
            )
    return _drawing(f"Speed over plain decoding, by {down} and {across}", HEAD + len(rows) * CELL + 4.0, drawn)


def _strength(value: float) -> float:
    """Of a cell's colour: a factor of two either way is full, and text can still be read on it."""
    ratio = max(value, 1.0 / value) if value > 0 else 2.0
    return 0.08 + 0.5 * min(1.0, ratio - 1.0)


def _name(name: str, top: float) -> Markup:
    shown = name if len(name) <= 22 else f"{name[:21]}…"
    return tag("text", tag("title", name), shown, x=LEFT - 10, y=top + 15, text_anchor="end", class_="dim")


def _drawing(title: str, height: float, drawn: Sequence[Markup]) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        *drawn,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=title,
        class_="drawing",
    )
