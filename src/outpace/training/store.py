"""The folder that answers are kept in: shards that grow wave by wave, and which prompts are done.

The open shard is rewritten after every wave, so a run that is killed loses one wave at most. Prompts are done in order,
so a count says which, of one list; the sha256 of those that are done tells that list from another. A list that goes on
after them with other prompts is welcome.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from outpace.errors import ConfigError
from outpace.training.conversations import Conversation, load_conversations, save_conversations
from outpace.training.prompts import Prompt, extend_digest
from outpace.wording import count_of

_BYTES_PER_ROW = 64
_STATE = "answers.json"


@dataclass(slots=True)
class _State:
    """What answers.json holds."""

    num_files: int = 0
    num_prompts_done: int = 0
    prompts_sha256: str = ""
    """Of the prompts that are done; see `extend_digest`."""
    num_invented: int = 0
    """Prompts of the target's own among the answers."""

    def __post_init__(self) -> None:
        numbers = (self.num_files, self.num_prompts_done, self.num_invented)
        if not all(isinstance(number, int) for number in numbers) or not isinstance(self.prompts_sha256, str):
            raise TypeError(f"three counts and a sum are expected, not {asdict(self)}")


class AnswerStore:
    """Conversations on disk.

    Args:
        folder: made if missing.
        shard_bytes: size at which a new file is begun.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = 15 << 20) -> None:
        self.folder, self.shard_bytes = folder, shard_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._state = self._read_state()
        self._number = self._state.num_files
        self._open: list[Conversation] = []

    def _read_state(self) -> _State:
        path = self.folder / _STATE
        if not path.exists():
            return _State(num_files=len(self.paths()))
        try:
            return _State(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); remove the folder's answers and write them again"
            ) from error

    @property
    def num_prompts_done(self) -> int:
        return self._state.num_prompts_done

    @property
    def num_invented(self) -> int:
        return self._state.num_invented

    def left(self, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """The prompts that are not done yet.

        Raises:
            ConfigError: those that are done are not the first of these: another file, or the same one changed.
        """
        count = self.num_prompts_done
        if count > len(prompts) or extend_digest("", prompts[:count]) != self._state.prompts_sha256:
            raise ConfigError(
                f"{self.folder} holds answers to {count_of(count, 'prompt')}, and they are not the first {count} of "
                f"these {len(prompts)}; give the prompts it was begun with (others may follow them), or another folder"
            )
        return prompts[count:]

    def paths(self) -> list[Path]:
        """The files so far."""
        return sorted(self.folder.glob("answers-*.safetensors"))

    @property
    def num_files(self) -> int:
        return self._number + bool(self._open)

    def add(
        self, conversations: Sequence[Conversation], *, prompts: Sequence[Prompt] = (), num_invented: int = 0
    ) -> None:
        """Writes a wave.

        Args:
            conversations: what it finished.
            prompts: the next of the list's that it took.
            num_invented: how many it took that the target made up.
        """
        self._open += conversations
        if self._open:
            save_conversations(self.folder / f"answers-{self._number:05d}.safetensors", self._open)
        if _num_bytes(self._open) >= self.shard_bytes:
            self._number, self._open = self._number + 1, []
        state = self._state
        state.num_files = self.num_files
        state.num_prompts_done += len(prompts)
        state.prompts_sha256 = extend_digest(state.prompts_sha256, prompts)
        state.num_invented += num_invented
        partial = self.folder / f"{_STATE}.partial"
        partial.write_text(json.dumps(asdict(state)), encoding="utf-8")
        partial.replace(self.folder / _STATE)

    def load(self) -> list[Conversation]:
        """Everything in the folder."""
        return load_conversations(self.paths())


def _num_bytes(conversations: Sequence[Conversation]) -> int:
    return sum(2 * len(c.tokens) + _BYTES_PER_ROW for c in conversations)
