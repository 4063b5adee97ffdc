"""Fields of OpenAI's API and of vLLM's that cannot change an answer here: they are taken, so that clients that always
send them can be used. Those that could are taken with the value that changes nothing, and refused with any other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from outpace.server.asking.strict import Name, Strict

MAX_LABELS = 16
Label = Annotated[str, Field(max_length=64)]


class Neutral(Strict):
    """Beside what is asked."""

    user: Name | None = None
    safety_identifier: Name | None = None
    metadata: Annotated[dict[Label, Name], Field(max_length=MAX_LABELS)] | None = None
    """These three go into the log."""
    store: bool | None = None
    """Nothing is stored, whatever it says."""
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    """Prefixes are kept and found without them."""
    service_tier: Name | None = None
    """There is one."""
    prediction: dict[str, Any] | None = None
    """What the answer may be, which OpenAI drafts from; here the drafter alone drafts."""
    priority: Literal[0] | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    use_beam_search: Literal[False] | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """For the log."""
        told = {"user": self.user, "safety_identifier": self.safety_identifier, "metadata": self.metadata}
        return {name: value for name, value in told.items() if value is not None}


class NeutralStream(Strict):
    """Of a stream's options."""

    include_obfuscation: Literal[False] | None = None
    """No chunk is padded."""
