"""Pages: who holds which part of the KV memory, and which prefixes can be reused.

A page is held by every sequence that uses it and, once full, by the prefix tree; it is free when nobody holds it. The
tree gives up its least recently used leaves when a sequence needs pages. Page 0 is the trash page and never handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outpace.kernels.kv import TRASH_PAGE


@dataclass(slots=True, eq=False)
class _Node:
    """A full page behind its parent's; the path from the root spells the tokens."""

    tokens: tuple[int, ...]
    page: int
    parent: _Node | None
    drafter_filled: bool
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
        self.reset()

    def reset(self) -> None:
        """Forgets every prefix and takes every page back, whoever held it."""
        num_pages = self.num_usable + 1
        self._free = [page for page in range(num_pages - 1, -1, -1) if page != TRASH_PAGE]
        self._holders = [0] * num_pages
        self._root = _Node((), TRASH_PAGE, None, True)
        self._node_of: dict[int, _Node] = {}
        self._idle_leaves: OrderedDict[int, _Node] = OrderedDict()
        """By page, least recently used first: nodes without children whose page nobody but the tree holds."""
        self._num_idle = 0
        """Nodes whose page nobody but the tree holds, with children or without."""

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that the prefix tree holds."""
        return len(self._node_of)

    def take(self, num_pages: int) -> list[int] | None:
        """Pages for a sequence, or None, with none taken, if even giving up all idle prefixes does not free enough.

        A failed attempt gives up none: who waits for pages tries again before every forward.
        """
        missing = num_pages - len(self._free)
        if missing > self._num_idle or (missing > 0 and not self._evict(missing)):
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
        for begin in range(0, len(tokens) - self.page_size, self.page_size):
            child = node.children.get(tuple(tokens[begin : begin + self.page_size]))
            if child is None or (needs_drafter and not child.drafter_filled):
                break
            self._num_idle -= self._holders[child.page] == 1
            self._holders[child.page] += 1
            self._idle_leaves.pop(child.page, None)
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
        for index in range(num_target // self.page_size):
            begin, end = index * self.page_size, (index + 1) * self.page_size
            node = self._adopt(node, tuple(tokens[begin:end]), pages[index], end <= num_drafter)

    def _adopt(self, parent: _Node, tokens: tuple[int, ...], page: int, filled: bool) -> _Node:
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = _Node(tokens, page, parent, filled)
            self._idle_leaves.pop(parent.page, None)
            self._hold(node, page)
        elif filled and not node.drafter_filled:
            self._let_go(node)
            self._hold(node, page)
            node.drafter_filled = True
        self._update(node)
        return node

    def _hold(self, node: _Node, page: int) -> None:
        """The tree takes a page for a node."""
        self._holders[page] += 1
        self._node_of[page] = node
        node.page = page

    def _let_go(self, node: _Node) -> None:
        """The tree gives a node's page back."""
        del self._node_of[node.page]
        self._num_idle -= self._holders[node.page] == 1
        self._idle_leaves.pop(node.page, None)
        self._drop(node.page)

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        assert self._holders[page] >= 0, f"page {page} was released twice"
        if self._holders[page] == 0:
            self._free.append(page)
        elif page in self._node_of:
            self._num_idle += self._holders[page] == 1
            self._update(self._node_of[page])

    def _update(self, node: _Node) -> None:
        """A node was used just now, or lost a holder or a child: if it is idle, it is the most recently used one."""
        if not node.children and self._holders[node.page] == 1:
            self._idle_leaves[node.page] = node
            self._idle_leaves.move_to_end(node.page)

    def _evict(self, num_pages: int) -> bool:
        """Gives up idle leaves, least recently used first, until `num_pages` are freed or none is left."""
        while num_pages and self._idle_leaves:
            _, node = self._idle_leaves.popitem(last=False)
            parent = node.parent
            assert parent is not None
            del parent.children[node.tokens]
            self._let_go(node)
            if parent is not self._root and not parent.children and self._holders[parent.page] == 1:
                self._idle_leaves[parent.page] = parent
                self._idle_leaves.move_to_end(parent.page, last=False)  # not used later than its child was
            num_pages -= 1
        return num_pages == 0
