"""The frame of a finding: the line of the file that it is about, with the place underlined."""

from ortdeploy.diagnostics import Span

_GUTTER = " | "
_CUT = "..."
_CONTEXT = 24  # columns that stay in front of the place where a line is too long for the terminal
_NARROWEST = 16


def frame(line: str, span: Span, width: int) -> tuple[str, str, str]:
    """Return the gutter, the line and the carets below the place, for a terminal of `width` columns.

    A line that is too long is cut on both sides of the place.
    """
    gutter = f"{span.line}{_GUTTER}"
    place, end = span.column - 1, (span.column if span.end is None else span.end - 1)
    before, marked, behind = (
        printed(line[:place]),
        printed(line[place:end]),
        printed(line[end:].rstrip()),
    )
    room = max(width - len(gutter), _NARROWEST)
    if columns(before + marked + behind) > room:
        before, marked, behind = _cut(before, marked, behind, room)
    return gutter, before + marked + behind, " " * columns(before) + "^" * max(columns(marked), 1)


def _cut(before: str, marked: str, behind: str, room: int) -> tuple[str, str, str]:
    if columns(before + marked) + len(_CUT) > room:
        kept = _last(before.lstrip(), min(_CONTEXT, room // 2))
        before = before if kept == before else _CUT + kept
    rest = room - columns(before) - len(_CUT)
    if columns(marked) > rest:
        return before, _first(marked, rest), _CUT
    behind_room = rest - columns(marked)
    return before, marked, behind if columns(behind) <= behind_room + len(_CUT) else _first(behind, behind_room) + _CUT


def _first(text: str, room: int) -> str:
    while columns(text) > room:
        text = text[:-1]
    return text


def _last(text: str, room: int) -> str:
    while columns(text) > room:
        text = text[1:]
    return text


def printed(text: str) -> str:
    """Return the text as it may be printed: no character moves the cursor, so that columns can be counted."""
    signs = (" " if sign == "\t" else sign if sign.isprintable() else "\ufffd" for sign in text)
    return "".join(signs)


def columns(text: str) -> int:
    """Return the columns of the terminal that a text takes: ideographs take two, combining marks none."""
    return sum(_width(sign) for sign in text) if not text.isascii() else len(text)


def _width(sign: str) -> int:
    import unicodedata  # noqa: PLC0415  most text is ASCII, and its tables are large

    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
