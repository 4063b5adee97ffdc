"""The section of one rank of a mixture of experts: where its forwards go, and what all ranks would come to."""

from __future__ import annotations

from collections.abc import Mapping

from outpace.lab.report import svg
from outpace.lab.report.html import Markup, table, tag
from outpace.lab.report.rank_line import Forward, Rank, Timed
from outpace.wording import count_of

NUM_COLOURS = 8
"""Classes `part0`, `part1`, … of the page; parts beyond share the last."""


def inside(rank: Rank) -> list[Markup]:
    """All of it but for its title."""
    names = dict.fromkeys(name for parts in rank.parts.values() for name, part in parts.items() if part.stacks)
    colours = {name: f"part{min(place, NUM_COLOURS - 1)}" for place, name in enumerate(names)}
    reuse = rank.settings.expert_reuse
    lossy = f" Lossy: {count_of(reuse, 'expert')} of a drafted token are such that others read anyway." if reuse else ""
    return [
        tag(
            "p",
            f"One of the ranks of {rank.settings.shape}: {count_of(rank.layers.all, 'layer')}, "
            f"{rank.layers.with_experts} of them with experts, context {rank.settings.context:,}; random weights and "
            f"routing.{lossy}",
        ),
        svg.stacked(
            "One forward by part, and what its bytes take at the copy rate, in milliseconds",
            _stacks(rank, colours),
            "ms",
        ),
        svg.legend(colours),
        table(
            ("", "as a graph", "launched eagerly", "its bytes", "share of that", "÷ plain step", "95% interval"),
            [_forward(forward) for forward in rank.cells],
        ),
        tag("h3", "Experts alone, a layer"),
        table(
            ("tokens", "experts touched", "MB", "µs", "share of the copy rate"),
            [
                (
                    str(each.tokens),
                    f"{each.experts_touched:.1f}",
                    f"{each.mb_a_layer:.1f}",
                    f"{each.us_a_layer:.1f}",
                    f"{each.share_of_copy_rate:.0%}",
                )
                for each in rank.experts_alone
            ],
        ),
        tag("h3", "All ranks"),
        tag("p", f"{rank.extrapolation.note}; a draft takes {rank.extrapolation.draft_ms:g} ms", class_="note"),
        table(
            ("a sum over ranks", "drafts", "plain", "verify ÷ plain step", "cycle", "break-even accept length"),
            [
                (
                    f"{row.sum_us:g} µs",
                    str(row.k),
                    f"{row.plain_tok_s:.1f} tok/s",
                    f"{row.verify_over_plain:.3f}",
                    f"{row.cycle_ms:.2f} ms",
                    f"{row.break_even_accept_length:.2f}",
                )
                for row in rank.extrapolation.rows
            ],
        ),
    ]


def sentence(rank: Rank) -> str | None:
    """The longest verify that was taken apart, beside what bytes say, and what drafts would have to bring."""
    plain = next((forward for forward in rank.cells if forward.k == 0 and forward.limit_ms > 0), None)
    verify = max((forward for forward in rank.taken_apart if forward.k), key=lambda forward: forward.k, default=None)
    if plain is None or verify is None or verify.timed is None:
        return None
    rows = sorted((row for row in rank.extrapolation.rows if row.k == verify.k), key=lambda row: row.sum_us)
    pays = ""
    if rows:
        middle = rows[len(rows) // 2]
        pays = (
            f" With all ranks, and {middle.sum_us:g} µs for a sum over them, {count_of(verify.k, 'draft')} would pay "
            f"above {middle.break_even_accept_length:.2f} tokens a cycle, by arithmetic."
        )
    return (
        f"On one rank of {rank.settings.shape} a {verify.name} tokens takes {verify.timed.over_plain.median:.2f} plain "
        f"steps, where the bytes that it reads would take {verify.limit_ms / plain.limit_ms:.2f}.{pays}"
    )


def _stacks(rank: Rank, colours: Mapping[str, str]) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """Each forward, and below it what its bytes take."""
    stacks = []
    for forward in rank.taken_apart:
        parts = {name: part for name, part in rank.parts[forward.k].items() if part.stacks}
        stacks.append((forward.name, [(name, part.ms, colours[name]) for name, part in parts.items()]))
        stacks.append(("its bytes", [(name, part.limit_ms, colours[name]) for name, part in parts.items()]))
    return stacks


def _forward(forward: Forward) -> tuple[str, ...]:
    limit = f"{forward.limit_ms:.3f} ms"
    if forward.timed is None:
        return forward.name, _ms(None), _ms(None), limit, "", "", ""
    over = forward.timed.over_plain
    span = "" if over.low is None or over.high is None else f"{over.low:.3f} … {over.high:.3f}"
    share, ratio = f"{forward.timed.fraction_of_limit:.0%}", f"{over.median:.3f}"
    return forward.name, _ms(forward.graph), _ms(forward.eager), limit, share, ratio, span


def _ms(timed: Timed | None) -> str:
    return "" if timed is None else f"{timed.ms.median:.3f} ms"
