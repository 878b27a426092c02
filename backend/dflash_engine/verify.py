"""Verification: one target pass over a draft tree, then a walk from the root along the target's own
choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .sampling import Choose
from .target import Target
from .tree import Tree
from .weights import F32

_ROWS_AHEAD = 4
"""Head rows computed at once along the most probable path: four cost hardly more than one."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the target makes of one tree."""

    path: tuple[int, ...]
    """Nodes on the accepted path, root first: their KV rows are kept."""
    tokens: tuple[int, ...]
    """Newly chosen tokens: the path's drafts and then the next bonus token (``len(path)`` tokens)."""


def walk(
    trees: Sequence[Tree], hidden: Sequence[F32], target: Target, choose: Sequence[Choose]
) -> list[Accepted]:
    """Follow the target's choices through each request's tree; stop where no child carries the choice.

    ``hidden[i] [N_i, hidden]`` are the last layer's states of tree i. At every node on the path the
    target's own rule chooses the next token, from the same logits as without drafts: that is what makes the
    output lossless. The head, the dearest product, is computed for the nodes walked to and their most
    probable successors only.
    """
    walks = [_Walk(tree, rule) for tree, rule in zip(trees, choose, strict=True)]
    while True:
        wanted = [(i, node) for i, w in enumerate(walks) if not w.done for node in w.nodes_ahead()]
        if not wanted:
            return [w.accepted() for w in walks]
        logits = target.head(np.stack([hidden[i][node] for i, node in wanted]))
        for (i, node), row in zip(wanted, logits, strict=True):
            walks[i].logits[node] = row
        for w in walks:
            w.advance()


class _Walk:
    def __init__(self, tree: Tree, choose: Choose) -> None:
        self._children = tree.children()
        self._leading = tree.leading_paths()
        self._choose = choose
        self._path = [0]
        self._tokens: list[int] = []
        self.logits: dict[int, F32] = {}
        self.done = False

    def nodes_ahead(self) -> list[int]:
        """The current node and its most probable successors, in path order."""
        ahead: list[int] = []
        node = self._path[-1]
        while node >= 0 and len(ahead) < _ROWS_AHEAD:
            ahead.append(node)
            node = self._leading[node]
        return ahead

    def advance(self) -> None:
        """Walk on as long as the logits are known."""
        while not self.done and self._path[-1] in self.logits:
            token = self._choose(self.logits[self._path[-1]])
            self._tokens.append(token)
            child = self._children.get((self._path[-1], token))
            if child is None:
                self.done = True
            else:
                self._path.append(child)

    def accepted(self) -> Accepted:
        return Accepted(tuple(self._path), tuple(self._tokens))
