"""Keeps secrets out of everything that is printed, logged or stored.

URLs hide what stands in the places that URLs have for secrets (`files/urls.py`); options hide what the schemas declare
to be a secret (`providers/secrets.py`). Documents that no schema describes go by the words of a name: `hf_token` is a
secret, `tokenizer` and `max_tokens` are not. Secrets that this process has met are taken out of other people's words.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ortdeploy.files.urls import MASK, is_url, mask_urls, parse_url

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = frozenset({
    "apikey", "authtoken", "accesstoken", "credential", "credentials", "passphrase", "passwd", "password", "privatekey",
    "pwd", "secret", "secretkey",
})  # fmt: skip
_AT_THE_END = frozenset({"auth", "authorization", "bearer", "token"})
_KEYS_OF = frozenset({"access", "account", "api", "auth", "encryption", "private", "secret", "shared", "signing"})
_OF_TEXT = frozenset({
    "bos", "cls", "end", "eos", "mask", "max", "min", "num", "pad", "sep", "special", "start", "stop", "unk",
})  # fmt: skip
_LONG_ENOUGH = 6  # characters from which a known secret is looked for in any text: 1234 is also a number of rows
_SET = "--set"

_known: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Return whether a name is that of a secret, by its whole words: a password, a token, an API key."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if _ALWAYS.intersection(words):
        return True
    if any(before in _KEYS_OF and word == "key" for before, word in pairwise(words)):
        return True
    return bool(words) and words[-1] in _AT_THE_END and not _OF_TEXT.intersection(words[:-1])


def masked(key: str, value: Any) -> Any:
    """Return a value, with the mask in place of what has the name of a secret, and URLs as they are shown."""
    if value is not None and is_secret_name(key):
        return MASK
    if isinstance(value, dict):
        return {inner: masked(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def masked_setting(text: str) -> str:
    """Return KEY=VALUE without a secret: of what is named like one, and of a URL."""
    key, equals, value = text.partition("=")
    return f"{key}{equals}{masked(key.rpartition('.')[2], value)}"


def shown_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line without secrets: those of --set, of URLs, and those that are known."""
    shown: list[str] = []
    for before, word in zip(("", *words), words):  # noqa: B905  the first word has none before it
        flag, equals, value = word.partition("=")
        if before == _SET:
            shown.append(masked_setting(word))
        elif flag == _SET and equals:
            shown.append(f"{flag}={masked_setting(value)}")
        else:
            shown.append(without_secrets(word))
    return tuple(shown)


def secret_setting(settings: Iterable[str]) -> str | None:
    """Return the first KEY=VALUE that holds a secret, as it may be shown; None if none does."""
    return next((shown for one in settings if (shown := masked_setting(one)) != one), None)


def shown_path(path: str) -> str:
    """Return a path as it is, and a URL without its secrets."""
    return parse_url(path).shown if is_url(path) else path


def remember_secret(value: Any) -> None:
    """Note a secret: from now on nothing that this process says holds it."""
    if isinstance(value, str) and len(value) >= _LONG_ENOUGH:
        _known.add(value)


def known_secrets() -> list[str]:
    """Return the secrets that this process has met, for a child of its own to keep too."""
    return sorted(_known)


def without_secrets(text: str) -> str:
    """Return a text without the secrets of URLs in it, and without those that are known."""
    text = mask_urls(text)
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
