"""Trees of text: each node is a line with a label, and the branches below it."""

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from ortdeploy.views.text import CYAN, Paint

DIM = "\x1b[2m"
_LEAST = 20  # columns of text, however deep the tree is


class Node(Struct, frozen=True, kw_only=True):
    """One entry of a tree: what it is, painted, what is said of it, and what belongs to it."""

    label: str
    text: str = ""
    children: "tuple[Node, ...]" = field(default=())


def branches(nodes: Sequence[Node], paint: Paint, width: int | None, indent: str = "") -> Iterator[str]:
    """Yield the lines of nodes that have one parent; `width` is the terminal's in columns, None: no line is broken."""
    for node in nodes:
        last = node is nodes[-1]
        own, below = f"{indent}{'└─' if last else '├─'} ", f"{indent}{'   ' if last else '│  '}"
        trunk = f"{below}{'│  ' if node.children else '   '}"
        yield from _wrapped(node, paint, own, trunk, width)
        yield from branches(node.children, paint, width, below)


def _wrapped(node: Node, paint: Paint, own: str, trunk: str, width: int | None) -> Iterator[str]:
    line = f"{node.label} {node.text}" if node.text else node.label
    lines = [line] if width is None else broken(line, max(width - len(own), _LEAST))
    for place, one in enumerate(lines):
        shown = paint(node.label, CYAN) + one[len(node.label) :] if one.startswith(node.label) and not place else one
        yield paint(trunk if place else own, DIM) + shown


def broken(line: str, width: int) -> list[str]:
    """Return the pieces of a line that fit into `width` columns; a word that is longer stays whole."""
    import textwrap  # noqa: PLC0415  only terminals

    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [line]
