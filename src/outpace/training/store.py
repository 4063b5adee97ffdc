"""The folder that answers are kept in: shards that grow wave by wave, and how many prompts are done.

The open shard is rewritten after every wave, so a run that is killed loses one wave at most.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from outpace.errors import ConfigError
from outpace.training.conversations import Conversation, load_conversations, save_conversations

_BYTES_PER_ROW = 64
_STATE = "answers.json"


class AnswerStore:
    """Conversations on disk.

    Args:
        folder: made if missing.
        shard_bytes: size at which a new file is begun.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = 15 << 20) -> None:
        self.folder, self.shard_bytes = folder, shard_bytes
        folder.mkdir(parents=True, exist_ok=True)
        state = self._read_state()
        self.num_prompts_done: int = state["num_prompts_done"]
        self._number: int = state["num_files"]
        self._open: list[Conversation] = []

    def _read_state(self) -> dict[str, int]:
        path = self.folder / _STATE
        if not path.exists():
            return {"num_prompts_done": 0, "num_files": len(self.paths())}
        try:
            state = json.loads(path.read_text())
            return {name: int(state[name]) for name in ("num_prompts_done", "num_files")}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); remove the folder's answers and write them again"
            ) from error

    def paths(self) -> list[Path]:
        """The files so far."""
        return sorted(self.folder.glob("answers-*.safetensors"))

    @property
    def num_files(self) -> int:
        return self._number + bool(self._open)

    def add(self, conversations: Sequence[Conversation], *, num_prompts: int) -> None:
        """Writes a wave that took `num_prompts` prompts."""
        self._open += conversations
        self.num_prompts_done += num_prompts
        if self._open:
            save_conversations(self.folder / f"answers-{self._number:05d}.safetensors", self._open)
        if _num_bytes(self._open) >= self.shard_bytes:
            self._number, self._open = self._number + 1, []
        state = {"num_prompts_done": self.num_prompts_done, "num_files": self.num_files}
        partial = self.folder / f"{_STATE}.partial"
        partial.write_text(json.dumps(state))
        partial.replace(self.folder / _STATE)

    def load(self) -> list[Conversation]:
        """Everything in the folder."""
        return load_conversations(self.paths())


def _num_bytes(conversations: Sequence[Conversation]) -> int:
    return sum(2 * len(c.tokens) + _BYTES_PER_ROW for c in conversations)
