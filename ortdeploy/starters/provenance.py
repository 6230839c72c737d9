"""Where each value of a manifest that `init` writes comes from: kept beside the value, from where it is written on.

A starter writes a value as a `Given`, and puts it into the text of its manifest like any other text: the text then
holds the value between two signs that YAML allows nowhere. `Page` takes the signs out, comments what is made up, and
lists the values with the lines in which they stand. So what is printed of values is what was written, and nothing else.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

_BEGIN, _FIELD, _TEXT, _END = "\x01", "\x1f", "\x02", "\x03"
"""None of them may stand in YAML: whatever a model or a file is called, `scalar` has written it as an escape."""

BATCH = "batch"
_SMALLER = 8
_SIGNS = re.compile(f"({_BEGIN}[^{_TEXT}]*{_TEXT}|{_END})")


class Origin(StrEnum):
    """What tells a value. Only the first four know it."""

    GRAPH = "graph"
    METADATA = "metadata"
    FILE = "file beside the model"
    DATA = "data"
    CONVENTION = "convention"
    MADE_UP = "made up"


class Given(Struct, frozen=True, kw_only=True):
    """A value as it is written: what it is called, its text in YAML, and its origin.

    `because` says more of the origin: whose convention it is, or what nobody has said. `write` says what belongs there,
    if the value is made up. `decides`: results depend on it.
    """

    name: str
    text: str
    origin: Origin
    because: str = ""
    write: str = ""
    decides: bool = True

    def __str__(self) -> str:
        """Return the text between its signs, to be put into the text of a manifest."""
        fields = (self.name, self.origin, self.because, self.write, "1" if self.decides else "")
        return f"{_BEGIN}{_FIELD.join(map(one_line, fields))}{_TEXT}{self.text}{_END}"

    @property
    def is_assumed(self) -> bool:
        """Whether nothing that belongs to the model or the data tells it."""
        return self.origin in {Origin.CONVENTION, Origin.MADE_UP}

    @property
    def is_needed(self) -> bool:
        """Whether the user must write it: it is made up, and results depend on it."""
        return self.origin is Origin.MADE_UP and self.decides


def graph(name: str, text: object) -> Given:
    """Return a value that follows from the graph: its types, shapes, symbols, operators or names."""
    return Given(name=name, text=str(text), origin=Origin.GRAPH)


def metadata(name: str, text: object) -> Given:
    """Return a value that the exporter has written into the model."""
    return Given(name=name, text=str(text), origin=Origin.METADATA)


def beside(name: str, text: object) -> Given:
    """Return a value that a file beside the model tells, or the path of that file."""
    return Given(name=name, text=str(text), origin=Origin.FILE)


def data(name: str, text: object) -> Given:
    """Return a value that the user's rows tell."""
    return Given(name=name, text=str(text), origin=Origin.DATA)


def convention(name: str, text: object, of: str = "", *, decides: bool = True) -> Given:
    """Return a value that is usual for models of the family, `of` whom."""
    return Given(name=name, text=str(text), origin=Origin.CONVENTION, because=of, decides=decides)


def choice(name: str, text: object) -> Given:
    """Return a value that is usual and that no result depends on, such as the size of a batch."""
    return convention(name, text, decides=False)


def made_up(name: str, text: object, because: str, write: str) -> Given:
    """Return a value that nobody knows and results depend on, with why, and what to write there."""
    return Given(name=name, text=str(text), origin=Origin.MADE_UP, because=because, write=write)


def samples(text: object, path: str) -> Given:
    """Return the path of rows that are made up, until the user names others."""
    return Given(name=f"sample rows ({path})", text=str(text), origin=Origin.MADE_UP, decides=False)


def one_line(text: str) -> str:
    """Return a text on one line, without signs that cannot be printed: names and metadata may have any."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


class Written(Struct, frozen=True, kw_only=True):
    """A value in a manifest, with the number of its line, from 1 on, and its place in the text [begin, end)."""

    given: Given
    line: int
    begin: int
    end: int


class Page(Struct, frozen=True, kw_only=True):
    """The text of a manifest with the signs of its values."""

    marked: str

    @property
    def plain(self) -> str:
        """The manifest without the comments at what is made up."""
        return _SIGNS.sub("", self.marked)

    @property
    def text(self) -> str:
        """The manifest, with a comment at the end of each line in which something is made up that results depend on."""
        lines = self.plain.split("\n")
        for one in self.written:
            if one.given.is_needed:
                lines[one.line - 1] += f"  # made up: {one.given.because}; write {one.given.write}"
        return "\n".join(lines)

    @property
    def written(self) -> tuple[Written, ...]:
        """The values, in the order in which they begin."""
        return tuple(sorted(_values(self.marked), key=lambda one: (one.begin, -one.end)))

    def with_batches(self, most: int) -> "Page":
        """Return the page with batches of at most some rows, where the graph does not say how many."""
        head = f"{_BEGIN}{BATCH}{_FIELD}{Origin.CONVENTION}{_FIELD}[^{_TEXT}]*{_TEXT}"
        return Page(
            marked=re.sub(rf"({head})(\d+)", lambda found: f"{found[1]}{min(most, int(found[2]))}", self.marked)
        )


def _values(marked: str) -> Iterator[Written]:
    """Yield the values of a marked text in the order in which they end."""
    begun: list[tuple[list[str], int]] = []
    plain = ""
    for piece in _SIGNS.split(marked):
        if piece.startswith(_BEGIN):
            begun.append((piece[1:-1].split(_FIELD), len(plain)))
        elif piece == _END:
            (name, origin, because, write, decides), begin = begun.pop()
            given = Given(
                name=name,
                text=plain[begin:],
                origin=Origin(origin),
                because=because,
                write=write,
                decides=bool(decides),
            )
            line = plain.count("\n", 0, begin) + 1
            yield Written(given=given, line=line, begin=begin, end=len(plain))
        else:
            plain += piece


def smaller_batches(page: Page) -> Iterator[Page]:
    """Yield the page with smaller and smaller batches, where their size is not the graph's; the last is of one row."""
    open_ = (one.given for one in page.written if one.given.name == BATCH and one.given.origin is Origin.CONVENTION)
    size = max((int(one.text) for one in open_), default=1)
    while size > 1:
        size = max(1, size // _SMALLER)
        yield page.with_batches(size)


def assumptions(values: Iterable[Written], manifest: str) -> Iterator[str]:
    """Yield what is taken by convention, then what is made up; of each, first what results do not depend on."""
    assumed = [one for one in values if one.given.is_assumed]
    for origin, beginning in ((Origin.CONVENTION, "By convention"), (Origin.MADE_UP, "Made up")):
        for decides in (False, True):
            found = [one for one in assumed if (one.given.origin, one.given.decides) == (origin, decides)]
            if found:
                told = f"{beginning} in {manifest}, and results depend on it" if decides else beginning
                yield f"{told}: {_listed(found)}."
    if any(one.given.decides for one in assumed):
        yield "The model file does not say. Check these values: wrong ones give confident but wrong results."


def _listed(values: Iterable[Written]) -> str:
    """Return names, those of one reason together."""
    groups: dict[str, dict[str, list[int]]] = {}
    for one in values:
        reason = one.given.because + (f"; write {one.given.write}" if one.given.write else "")
        lines = groups.setdefault(reason, {}).setdefault(one.given.name, [])
        lines += [one.line] if one.given.is_needed and one.line not in lines else []
    return "; ".join(
        ", ".join(name + (f" in line {', '.join(map(str, lines))}" if lines else "") for name, lines in names.items())
        + (f" ({reason})" if reason else "")
        for reason, names in groups.items()
    )
