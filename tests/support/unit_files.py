"""Reads unit files as systemd.syntax(7) and systemd.service(5) say, independently of what writes them."""

import re


def read_unit(text: str) -> list[tuple[str, str, str]]:
    """Return section, setting and value of each line that systemd takes for a setting, in their order."""
    found: list[tuple[str, str, str]] = []
    section, begun = "", ""
    for physical in re.split(r"\r\n|\n\r|[\n\r\0]", text):
        line = begun + physical.strip(" \t\n\r") if begun else physical.strip(" \t\n\r")
        begun = ""
        if not line or line[0] in "#;":
            continue
        if _is_continued(line):
            begun = f"{line[:-1]} "
        elif line[0] == "[":
            section = line[1:-1]
        else:
            setting, _, value = line.partition("=")
            found.append((section, setting.rstrip(), value.lstrip()))
    return found


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def words_of(value: str, *, escapes: bool) -> list[str]:
    """Split a value into words; `escapes`: backslashes begin escapes of C, else they keep the next character."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    signs = iter(value)
    for sign in signs:
        if sign == "\\":
            following = next(signs)
            assert following in '\\"' or not escapes, f"an escape that no path needs: {following!r}"
            word = (word or "") + following
        elif quote:
            if sign == quote:
                quote = ""
            else:
                word = (word or "") + sign
        elif sign in "\"'":
            quote, word = sign, word or ""
        elif sign in " \t\n\r":
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + sign
    assert not quote, "a quote that is not closed"
    return words + ([] if word is None else [word])


def expanded(word: str) -> str:
    """Return a word with its specifiers: only that for a percent sign may be there."""
    assert re.fullmatch(r"(?:[^%]|%%)*", word, re.DOTALL), f"a specifier: {word}"
    return word.replace("%%", "%")


def without_variables(word: str) -> str:
    """Return a word of a command line as systemd hands it on: only escaped dollar signs may be there."""
    assert re.fullmatch(r"(?:[^$]|\$\$)*", word, re.DOTALL), f"a variable: {word}"
    return word.replace("$$", "$")
