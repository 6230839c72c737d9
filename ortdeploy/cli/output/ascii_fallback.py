"""Spells signs that a terminal or file cannot encode: an arrow is -> where all is ASCII."""

import codecs

ERRORS = "ortdeploy.plain-signs"
"""The name of the error handler, for streams."""

_SPELLED = {
    "\u2026": "...", "\u2192": "->", "\u2190": "<-", "\u00d7": "x", "\u00b5": "u", "\u2264": "<=", "\u2265": ">=",
    "\u2013": "-", "\u2014": "-", "\u00b7": "-", "\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'",
    "\u2502": "|", "\u251c": "|", "\u2514": "`", "\u2500": "-", "\ufffd": "?",
}  # fmt: skip
"""Dots, arrows, signs of numbers, dashes, quotes, the lines of trees, and the mark of a sign that is left out."""


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError):
        sign = error.object[error.start]
        if sign in _SPELLED:
            return _SPELLED[sign], error.start + 1
    return codecs.backslashreplace_errors(error)


codecs.register_error(ERRORS, _spell)
