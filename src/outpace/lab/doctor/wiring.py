"""Findings on which wiring a drafter was trained for, and what a better one would come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outpace import LLM, SamplingParams
from outpace.lab.doctor.finding import Advice, Cite, Finding
from outpace.lab.doctor.own_engine import Timed, time_one
from outpace.lab.wirings.search import Found
from outpace.lab.wirings.variant import AS_READ, Variant, rewired
from outpace.models.drafter import Drafter

QUESTION = "which wiring measures best"
MOST_SHOWN = 5
GAINED = 1.05
"""Accept length by which feeding the other state has to be better; some answers cannot tell less."""


def judge(
    llm: LLM, drafter: Drafter, found: Found, given: Timed, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[Finding, list[Advice], Timed | None]:
    """The finding, what to try, and the answers under the best wiring if that is another one.

    Args:
        llm: with the drafter as it was given.
        drafter: the same, not packed.
        found: what the first drafts of all wirings came to.
        given: answers as it was given.
        prompts: to be answered under a better wiring.
    """
    best, better = found.best.variant, None
    if best.shift == 1:
        if found.differs:
            better = _run(llm, drafter, best, prompts, params)
        flipped = replace(best, norm_output=not best.norm_output)
        other = _run(llm, drafter, flipped, prompts, params)
        if other.stats.accept_length > GAINED * (better or given).stats.accept_length:
            best, better = flipped, other
    return _finding(found, best, given, better), _advice(found, best, given, better), better


def remedy(best: Variant, given: Variant) -> str:
    """How to wire it so."""
    if best.shift != 1:
        return (
            "it was trained for another pairing of features and tokens, which no EAGLE-3 engine serves: train it anew"
        )
    found = []
    if best.boundaries != given.boundaries:
        ids = list(best.boundaries)
        outputs = [boundary - 1 for boundary in ids]
        found.append(
            f"--aux-boundaries {' '.join(map(str, ids))}; in its config.json eagle_aux_hidden_state_layer_ids {ids} "
            f"(vLLM) and eagle_config.eagle_aux_hidden_state_layer_ids {outputs} (SGLang)"
        )
    if best.ids != AS_READ:
        found.append(f"write d2t anew: target id = draft id + d2t, and the ids are {best.ids}")
    if best.fusion_norm != given.fusion_norm:
        field = {"none": "no norm before fc", "whole": "norm_before_fc and input_norm", "per_tap": "fc_norm"}
        found.append(
            f"its checkpoint should have {field[best.fusion_norm]} (weights of 1 were tried where it has none)"
        )
    if best.norm_before_residual != given.norm_before_residual:
        found.append(f"norm_before_residual {str(best.norm_before_residual).lower()} in its config.json")
    if best.norm_output != given.norm_output:
        found.append(f"norm_output {str(best.norm_output).lower()} in its config.json")
    return "; ".join(found)


def _run(
    llm: LLM, drafter: Drafter, variant: Variant, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> Timed:
    joined = rewired(drafter, llm.target.model, variant)
    joined.pack()
    return time_one(LLM.from_parts(llm.target, joined, llm.config), prompts, params)


def _finding(found: Found, best: Variant, given: Timed, better: Timed | None) -> Finding:
    own, top = found.given, found.best
    num = len(own.hits)
    others = [score for score in found.tried if score is not own and score is not top][:MOST_SHOWN]
    differences = best.differences(own.variant)
    if not differences:
        text = f"As it is wired, {own.acceptance:.0%} of {num} first drafts stand; of {len(found.tried) - 1} other "
        text += "wirings none is clearly better."
    else:
        text = f"As it is wired, {own.acceptance:.0%} of {num} first drafts stand; with {' and '.join(differences)} "
        text += f"{top.acceptance:.0%}: {remedy(best, own.variant)}."
    if better is not None:
        text += f" In the engine the accept length goes from {given.stats.accept_length:.2f} to "
        text += f"{better.stats.accept_length:.2f}."
    told = "; ".join(f"{' and '.join(s.variant.differences(own.variant))} {s.acceptance:.0%}" for s in others)
    return Finding(
        question=QUESTION,
        answer=" and ".join(differences) or "the given one",
        text=f"{text} Others: {told}." if told else text,
        confidence="high" if num >= 100 else "medium",
        evidence=[Cite("first drafts over the target's own answers")],
        numbers={
            "given": own.acceptance,
            "best": top.acceptance,
            "num_drafts": num,
            "accept_length": given.stats.accept_length,
            "best_accept_length": (better or given).stats.accept_length,
            "num_wirings": len(found.tried),
            "aux_boundaries": list(best.boundaries),
            "draft_ids": best.ids,
            "shift": best.shift,
            "fusion_norm": best.fusion_norm,
            "norm_before_residual": best.norm_before_residual,
            "norm_output": best.norm_output,
        },
    )


def _advice(found: Found, best: Variant, given: Timed, better: Timed | None) -> list[Advice]:
    """With the tok/s that was measured under it; `over_plain` is filled in by whoever knows plain decoding."""
    if better is None:
        return []
    return [
        Advice(
            action=f"wire the drafter otherwise: {' and '.join(best.differences(found.given.variant))}",
            tok_s=better.tok_s,
            over_now=better.tok_s / given.tok_s,
            over_plain=0.0,
            arithmetic=f"measured, accept length {better.stats.accept_length:.2f}; {remedy(best, found.given.variant)}",
            confidence="high",
        )
    ]
