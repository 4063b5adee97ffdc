"""A map of speeds, drawn with characters: a number and a shade in each cell."""

from __future__ import annotations

from outpace.lab.breakeven.heat import Heat

SHADES = ((0.9, "░"), (1.0, "▒"), (1.5, "▓"), (float("inf"), "█"))
"""Up to each value; at 1 exactly speculation does not pay."""
LEGEND = "× plain decoding: ░ up to 0.9   ▒ up to 1   ▓ pays   █ above 1.5"
ROUNDING = 1e-9


def lines(heat: Heat) -> list[str]:
    """The map with its title and legend; the cell of the given figures stands in brackets."""
    labels = max(map(len, heat.rows))
    cells = [[_cell(heat, row, column) for column in range(len(heat.columns))] for row in range(len(heat.rows))]
    width = max(len(text) for texts in (heat.columns, *cells) for text in texts)
    drawn = [f"  {heat.title}", f"  {'':{labels}} " + "".join(f" {name:>{width}}" for name in heat.columns)]
    for label, texts in zip(heat.rows, cells, strict=True):
        drawn.append(f"  {label:>{labels}} " + "".join(f" {text:>{width}}" for text in texts))
    legend = f"  {LEGEND}" + ("" if heat.here is None else "   [ ] the figures given")
    return [line.rstrip() for line in (*drawn, legend)]


def _cell(heat: Heat, row: int, column: int) -> str:
    value = heat.values[row][column]
    shade = next(shade for limit, shade in SHADES if value <= limit + ROUNDING)
    note = f" {heat.notes[row][column]}" if heat.notes else ""
    text = f"{value:.2f}{note}{shade}"
    return f"[{text}]" if (row, column) == heat.here else f"{text} "
