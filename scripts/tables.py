"""Results of scripts/measure as tables: docs/measured.md.

    python scripts/tables.py results docs/measured.md

Reads the JSON lines in a folder; what was not measured is left out, and said on stderr. Each table names its commands
and the commits. What is broken, or was measured with other flags than its command has, is refused, and the page stays
as it was.
"""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outpace.wording import count_of

Line = dict[str, Any]
Row = tuple[str, str, str]
"""What, how much, and what the aim is."""

ROOT = Path(__file__).parent.parent
HEAD = """# What was measured

One GPU, random weights and simulated acceptance unless a real model is named; medians, with 95% intervals where there
are any. *Limit* is the larger of two times: the bytes that must be read at the rate of a large copy, and the operations
at that of a large product, both measured in the same run. *Aim* is what this project set itself for an H200.
`scripts/measure results` (GPU) takes all of this anew, and `python scripts/tables.py results docs/measured.md` writes
this page.
"""


class Refused(Exception):
    """A folder or a file holds no results."""


def commands() -> dict[str, str]:
    """Of scripts/measure, by the names of their results."""
    listed = subprocess.run([ROOT / "scripts" / "measure", "--list"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in listed.splitlines())


def main(folder: Path) -> str:
    """The page.

    Raises:
        Refused: there is nothing, or something else than what the commands print.
    """
    by_name = commands()
    lines = {name: line for name, command in by_name.items() if (line := _line(folder / f"{name}.json", command))}
    if not lines:
        raise Refused(f"{folder} holds no results of scripts/measure")
    if left_out := [name for name in by_name if name not in lines]:
        print(f"not measured, and left out: {', '.join(left_out)}", file=sys.stderr)
    parts = [HEAD]
    for title, names, make in SECTIONS:
        if there := [name for name in names if name in lines]:
            found, used = [lines[name] for name in there], ", ".join(f"`{by_name[name]}` (GPU)" for name in there)
            parts.append("\n".join([f"## {title}", *make(found), "", f"By {used}; {_where(found)}.", ""]))
    return "\n".join(parts)


def _line(path: Path, command: str) -> Line | None:
    """What a command printed; None if it was not run, or failed."""
    if not path.exists() or not path.stat().st_size:
        return None
    try:
        line: Line = json.loads(path.read_text(encoding="utf-8"))
        told, benchmark = line["settings"], line["benchmark"]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is no line of a benchmark: {type(error).__name__}: {error}") from error
    _, script, *flags = shlex.split(command)
    parse = runpy.run_path(str(ROOT / script))["parse"]
    unless_told, asked = (json.loads(json.dumps(vars(parse(given)), default=str)) for given in ([], flags))
    settings = unless_told | told  # a flag that there was not yet is as if it had not been given
    other = [name for name in settings if settings[name] != asked.get(name)]
    if benchmark != Path(script).stem or other:
        given = ", ".join(f"{name} {settings[name]}" for name in other)
        raise Refused(f"{path} is not what `{command}` prints: it is of {benchmark}, {given}")
    return line


def _where(lines: Sequence[Line]) -> str:
    machines = [line["machine"] for line in lines]
    gpus = dict.fromkeys(gpu["name"] for machine in machines for gpu in machine["gpus"])
    commits = dict.fromkeys(f"{machine['commit']} of {machine['taken_at'][:10]}" for machine in machines)
    versions = dict.fromkeys(f"torch {machine['torch']}, Triton {machine['triton']}" for machine in machines)
    return "; ".join([", ".join(gpus), ", ".join(versions), ", ".join(commits)])


def _table(rows: Sequence[Row]) -> list[str]:
    return ["| | measured | aim |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def _ratio(found: dict[str, float], digits: int = 3) -> str:
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} … {found['high']:.{digits}f})"


def _cells(line: Line) -> dict[tuple[int, int, int], dict[str, Any]]:
    return {(cell["batch"], cell["context"], cell["k"]): cell for cell in line["cells"]}


def _shape(line: Line) -> str:
    return str(line["settings"]["shape"] or line["settings"].get("model"))


def steps(lines: Sequence[Line]) -> list[str]:
    """Plain steps and verifies."""
    rows: list[Row] = []
    for line in lines:
        for (batch, context, k), cell in _cells(line).items():
            where = f"{_shape(line)}, batch {batch}, context {context:,}"
            if k:
                near = "≤ 1.05" if batch == 1 and context < 8192 else "≤ 1.10" if batch == 1 or k == 3 else ""
                aim = near if _shape(line) == "llama-8b" else ""
                rows.append((f"{where}: verify of {k + 1} ÷ plain step", _ratio(cell["verify_over_plain"]), aim))
            else:
                share = "≥ 65%" if _shape(line) == "llama-1b" and batch == 1 else ""
                took = f"{cell['step_ms']['median']:.3f} ms; {cell['fraction_of_limit']:.1%}"
                rows.append((f"{where}: plain step; share of its limit", took, share))
    return _table(rows)


CYCLES = {(1, 0): 4.36, (8, 0): 4.75, (1, 3): 5.2, (1, 5): 5.7, (1, 7): 6.1, (8, 3): 5.6, (8, 5): 6.2, (8, 7): 6.9}
"""Milliseconds that a cycle of 8B shapes may take, by batch and k."""
SHARES = {32: 0.85, 128: 0.85}
"""Of its limit that a plain step of so many rows must reach."""


def cycles(lines: Sequence[Line]) -> list[str]:
    """Whole cycles, host included."""
    rows: list[Row] = []
    for line in lines:
        rest = " after a rest" if line["settings"].get("rest") else ""
        for (batch, context, k), cell in _cells(line).items():
            what = "plain step" if k == 0 else f"cycle of {k} drafts"
            aim = [f"≤ {CYCLES[batch, k]} ms"] if (batch, k) in CYCLES else []
            aim += [f"≥ {SHARES[batch]:.0%}"] if k == 0 and batch in SHARES else []
            where = f"{_shape(line)}, batch {batch}, context {context:,}{rest}: {what}"
            took = f"{cell['cycle_ms']['median']:.3f} ms; {cell['fraction_of_limit']:.1%}"
            rows.append((f"{where}; share of its limit", took, " ".join(aim)))
            if k and batch == 1 and (idle := cell.get("idle")) is not None:
                rows.append((f"{where}: the device idles before the next", f"{idle['between_cycles']:.1%}", "≤ 2%"))
    return _table(rows)


def never_slower(lines: Sequence[Line]) -> list[str]:
    """Automatic k against an engine without a drafter, and against the best fixed k."""
    cells = [cell for line in lines for cell in line["cells"]]
    places = list(dict.fromkeys((cell["batch"], cell["context"]) for cell in cells))
    by_place = {(cell["acceptance"], cell["batch"], cell["context"]): cell for cell in cells}
    said = []
    for title, field in (
        ("÷ an engine without a drafter", "auto_over_plain"),
        ("÷ the best fixed k", "auto_over_best_fixed"),
    ):
        said += [
            "",
            f"| k chosen by the engine {title}; acceptance | {' | '.join(f'{b} × {c:,}' for b, c in places)} |",
        ]
        said.append("|---" * (1 + len(places)) + "|")
        for acceptance in dict.fromkeys(cell["acceptance"] for cell in cells):
            found = [by_place.get((acceptance, *place)) for place in places]
            shown = [
                "" if cell is None else f"{cell[field]['median']:.3f} ({cell[field]['low']:.3f})" for cell in found
            ]
            said.append(f"| {acceptance} | {' | '.join(shown)} |")
    passed, shapes = sum(cell["passes"] for cell in cells), ", ".join(dict.fromkeys(map(_shape, lines)))
    return [
        f"{shapes}: medians, and lower ends of 95% intervals in brackets, by requests at a time × tokens of context.",
        "The aim is a median of 0.97 and a lower end of 0.95 against an engine without a drafter, and a median of 0.95",
        f"against the best fixed k: {passed} of {len(cells)} cells reach it.",
        *said,
    ]


def answers(lines: Sequence[Line]) -> list[str]:
    """Whole answers."""
    rows: list[Row] = []
    for line in lines:
        for found in line["batches"]:
            speeds = f"{found['tok_s']['plain']:,.0f} → {found['tok_s']['speculative']:,.0f} tok/s"
            length, share = found["accept_length"], found["efficiency"]
            gain = f"{_ratio(found['speedup'], 2)} at accept length {length:.2f}, {share:.3f} of it"
            aim = "" if found["batch"] > 1 else "≥ 0.80" if line["settings"]["shape"] else "≥ 0.60"
            rows.append((f"{_shape(line)}, batch {found['batch']}: plain → with drafts", f"{speeds}; {gain}", aim))
    return _table(rows)


def starts(lines: Sequence[Line]) -> list[str]:
    """Ready, and prompts."""
    rows: list[Row] = []
    for line in lines:
        if line["benchmark"] == "ready":
            for name in ("nothing_compiled", "compiled_before"):
                aim = "≤ 20 s" if name == "nothing_compiled" else ""
                rows.append(
                    (
                        f"{_shape(line)}: ready after weights are in memory, {name.replace('_', ' ')}",
                        f"{line[name]['ready_s']:.1f} s",
                        aim,
                    )
                )
        for prompt in line.get("prompts", ()) if line["benchmark"] == "prefill" else ():
            took = f"{prompt['first_token_ms']['plain']['median']:.1f} ms; {prompt['fraction_of_limit']:.1%}"
            aim = "≥ 60%" if prompt["tokens"] >= 8192 else ""
            what = f"{_shape(line)}: a prompt of {prompt['tokens']:,} tokens to its first token; share of its limit"
            rows.append((what, took, aim))
    return _table(rows)


def servers(lines: Sequence[Line]) -> list[str]:
    """What HTTP adds."""
    rows: list[Row] = []
    for line in lines:
        settings = line["settings"]
        where = _shape(line) + (", k " + str(settings["k"]) if settings["shape"] and settings["k"] else "")
        how = (", in a row" if settings["in_a_row"] > 1 else "") + (", cores awake" if settings.get("awake") else "")
        rows.append(
            (f"{where}{how}: added to a first token", f"{_ratio(line['first_token_ms']['added'], 2)} ms", "≤ 1 ms")
        )
        rows.append((f"{where}{how}: throughput ÷ the engine's", _ratio(line["server_over_engine"]), "≥ 0.98"))
    return _table(rows)


def products(lines: Sequence[Line]) -> list[str]:
    """Single products beside cuBLAS's."""
    rows: list[Row] = []
    for line in lines:
        for cell in line["cells"]:
            what = f"{_shape(line)}, {cell['product']}, {count_of(cell['rows'], 'row')}"
            ours, cublas = cell["times"].get("ours"), cell["times"]["cublas"]
            took = f"{cublas['us']['median']:.1f} µs; {cublas['fraction_of_limit']:.1%}"
            if ours is None:
                rows.append((f"{what}: cuBLAS, which is taken; share of its limit", took, ""))
                continue
            own = f"{ours['us']['median']:.1f} µs; {ours['fraction_of_limit']:.1%}"
            rows.append((f"{what}: ours; share of its limit", own, ""))
            rows.append((f"{what}: cuBLAS; share of its limit", took, ""))
    return _table(rows)


def prefilled(lines: Sequence[Line]) -> list[str]:
    """A layer's experts of a whole prompt."""
    rows: list[Row] = []
    for line in lines:
        for found in line["prefill"]:
            what = f"{_shape(line)}: experts of {found['tokens']:,} tokens, pairs of a tile {found['pairs_of_a_tile']}"
            took = f"{found['us_a_layer']:,.0f} µs; {found['fraction_of_limit']:.1%}"
            rows.append((f"{what}; a layer, share of its limit", took, ""))
    return _table(rows)


def ranks(lines: Sequence[Line]) -> list[str]:
    """One rank of a mixture."""
    rows: list[Row] = []
    for line in lines:
        where = f"{line['settings']['shape']}, {line['layers']['all']} layers"
        for cell in line["cells"]:
            took = f"{cell['graph']['ms']['median']:.3f} ms; {cell['graph']['fraction_of_limit']:.1%}"
            what = "plain step" if cell["k"] == 0 else f"verify of {cell['k'] + 1}"
            rows.append((f"{where}: {what}; share of its bytes' limit", took, ""))
            if cell["k"]:
                aim = "≤ 1.6" if cell["k"] == 2 else ""
                rows.append((f"{where}: {what} ÷ plain step", _ratio(cell["graph"]["over_plain"]), aim))
        for found in line["experts_alone"]:
            aim = "≥ 70%" if found["over_100_mb"] else ""
            what = f"experts of {found['tokens']} tokens, {found['mb_a_layer']:.0f} MB a layer: share of the copy rate"
            rows.append((f"{where}: {what}", f"{found['share_of_copy_rate']:.1%}", aim))
    return _table(rows)


SECTIONS: tuple[tuple[str, tuple[str, ...], Callable[[Sequence[Line]], list[str]]], ...] = (
    ("Steps and verifies", ("step", "step-long", "step-1b"), steps),
    ("Single products", ("products",), products),
    ("Whole cycles", ("cycle", "cycle-many", "cycle-rested"), cycles),
    ("Never slower", ("never-slower-1", "never-slower-16", "never-slower-64"), never_slower),
    ("Whole answers", ("end-to-end", "end-to-end-real"), answers),
    ("Starting, and prompts", ("ready", "prefill"), starts),
    ("The server", ("server-cost", "server-cost-k3", "server-cost-row", "server-cost-awake"), servers),
    ("A rank of a mixture of experts", ("mixture", "mixture-fp8"), ranks),
    ("The experts of a prompt", ("mixture-prefill",), prefilled),
)

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        page = main(Path(sys.argv[1]))
        Path(sys.argv[2]).write_text(page, encoding="utf-8")
    except (Refused, OSError) as error:
        sys.exit(f"tables.py: {error}")
