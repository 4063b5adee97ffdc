"""Pages: who holds which part of the KV memory, and which prefixes can be reused.

A page is held by every sequence that uses it and, once full, by the prefix tree; it is free when nobody holds it. The
tree gives up its least recently used leaves when a sequence needs pages. Page 0 is the trash page and never handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from outpace.kernels.kv import TRASH_PAGE


@dataclass(slots=True, eq=False)
class _Node:
    """A full page behind its parent's; the path from the root spells the tokens."""

    tokens: tuple[int, ...]
    page: int
    parent: _Node | None
    drafter_filled: bool
    last_used: int
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class Pages:
    """Reference-counted pages and the tree of reusable prefixes.

    Args:
        num_pages: all pages, the trash page included.
        page_size: tokens in a page.
        reuse: keep full pages for later prompts.
    """

    def __init__(self, num_pages: int, page_size: int, reuse: bool = True) -> None:
        self.page_size = page_size
        self.num_usable = num_pages - 1
        self._reuse = reuse
        self._free = [page for page in range(num_pages - 1, -1, -1) if page != TRASH_PAGE]
        self._holders = [0] * num_pages
        self._root = _Node((), TRASH_PAGE, None, True, 0)
        self._node_of: dict[int, _Node] = {}
        self._idle_leaves: list[tuple[int, int, _Node]] = []
        self._clock = count(1)

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that the prefix tree holds."""
        return len(self._node_of)

    def take(self, num_pages: int) -> list[int] | None:
        """Pages for a sequence, or None, with none taken, if even giving up all idle prefixes does not free enough."""
        if len(self._free) < num_pages and not self._evict(num_pages - len(self._free)):
            return None
        taken = [self._free.pop() for _ in range(num_pages)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def release(self, pages: Sequence[int]) -> None:
        """A sequence lets go of its pages."""
        for page in pages:
            self._drop(page)

    def match(self, tokens: Sequence[int], needs_drafter: bool) -> list[int]:
        """Pages of the longest cached prefix of `tokens`, held for the caller.

        At least one token is left over to be computed. With `needs_drafter` only pages whose drafter entries are filled
        count: drafting over empty ones would cost acceptance.
        """
        node, pages = self._root, []
        now = next(self._clock)
        for begin in range(0, len(tokens) - self.page_size, self.page_size):
            child = node.children.get(tuple(tokens[begin : begin + self.page_size]))
            if child is None or (needs_drafter and not child.drafter_filled):
                break
            child.last_used = now
            self._holders[child.page] += 1
            pages.append(child.page)
            node = child
        return pages

    def remember(self, tokens: Sequence[int], pages: Sequence[int], num_target: int, num_drafter: int) -> None:
        """Offers a sequence's full pages to later prompts.

        Args:
            tokens: the sequence.
            pages: its pages, in order.
            num_target: positions whose K/V is final.
            num_drafter: positions whose drafter entries are final.
        """
        if not self._reuse:
            return
        node = self._root
        now = next(self._clock)
        for index in range(num_target // self.page_size):
            begin, end = index * self.page_size, (index + 1) * self.page_size
            node = self._adopt(node, tuple(tokens[begin:end]), pages[index], end <= num_drafter, now)

    def _adopt(self, parent: _Node, tokens: tuple[int, ...], page: int, filled: bool, now: int) -> _Node:
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = _Node(tokens, page, parent, filled, now)
            self._hold_in_tree(node, page)
        elif filled and not node.drafter_filled:
            old = node.page
            self._hold_in_tree(node, page)
            del self._node_of[old]
            self._drop(old)
            node.drafter_filled = True
        node.last_used = now
        return node

    def _hold_in_tree(self, node: _Node, page: int) -> None:
        self._holders[page] += 1
        self._node_of[page] = node
        node.page = page

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        assert self._holders[page] >= 0, f"page {page} was released twice"
        if self._holders[page] == 0:
            self._free.append(page)
        elif page in self._node_of:
            self._offer(self._node_of[page])

    def _offer(self, node: _Node) -> None:
        """Notes a node that may be given up. What happens to it afterwards is checked when its turn comes."""
        if self._idle(node):
            heappush(self._idle_leaves, (node.last_used, node.page, node))

    def _idle(self, node: _Node) -> bool:
        return not node.children and self._holders[node.page] == 1 and self._node_of.get(node.page) is node

    def _evict(self, num_pages: int) -> bool:
        """Gives up idle leaves, least recently used first, until `num_pages` are freed or none is left."""
        while num_pages and self._idle_leaves:
            last_used, page, node = heappop(self._idle_leaves)
            if not (self._idle(node) and (last_used, page) == (node.last_used, node.page)):
                continue
            assert node.parent is not None
            del node.parent.children[node.tokens], self._node_of[page]
            self._drop(page)
            if node.parent is not self._root:
                self._offer(node.parent)
            num_pages -= 1
        return num_pages == 0
