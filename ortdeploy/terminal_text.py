"""Makes text of others harmless before it goes out: to a terminal, a pipe, a log line, a page, a unit file.

Names of files and models, messages of libraries and lines of manifests may hold characters that are no text: escape
sequences move the cursor and retitle windows, a carriage return or U+2028 begins a new line, and U+202E turns what
follows around, so that one name is read as another.
"""

import re

_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1, with U+0085, which ends a line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the direction of writing
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # bytes of a name that is not UTF-8, as Python keeps them
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags, which no terminal shows
)
_CONTROL = f"[{_CONTROLS}]"  # not compiled here: that takes longer than the rest of a short command's output
_COLOR = r"\x1b\[(?:0|1|2|31|32|33|34|36)m"
_UNSAFE = rf"(?!\n|{_COLOR}){_CONTROL}"
_NO_TEXT = rf"(?!\n){_CONTROL}"
_MARK = "\ufffd"


def first_control(text: str) -> str | None:
    """Return the first character of a text that controls whatever shows it, such as U+000D or U+202E; None without."""
    found = re.search(_CONTROL, text)
    return found[0] if found else None


def name_of_control(sign: str) -> str:
    """Return how a message names such a character: `U+000D`."""
    return f"U+{ord(sign):04X}"


def printable(text: str) -> str:
    """Return text without anything that is not printed: for words within a line that we lay out."""
    return "".join(sign if sign.isprintable() else _MARK for sign in text)


def safe(text: str) -> str:
    """Return lines without control characters except for their ends and our own colors."""
    return text if _is_printed(text) else re.sub(_UNSAFE, _MARK, text)


def plain(text: str) -> str:
    """Return lines without control characters except for their ends: for pages, metrics and other files of text."""
    return text if _is_printed(text) else re.sub(_NO_TEXT, _MARK, text)


def shortened(text: str, most: int) -> str:
    """Return a text, cut to `most` signs if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def label_of_metric(text: str) -> str:
    """Return a text as it stands between the quotes of a label, in the text format of Prometheus."""
    return plain(text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))


def _is_printed(text: str) -> bool:
    """Return whether every character of some lines is printed: then none of them is a control character."""
    return text.replace("\n", "").isprintable()
