"""Reads `when:` of profiles, and says of each on a machine: it holds, it does not, or a fact is not known.

A `when` is a set of **terms**, each about one fact, and all must hold; `not:` is a set that must not hold as a whole.
Facts do not depend on each other, so a set of terms is a box: for each fact, the values that it allows. Contradictions
and implications follow from boxes by set operations, over those values that the terms of a manifest tell apart.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import permutations
from typing import Any

from msgspec import Struct

from ortdeploy.facts.variants import Fact, OfferedDevice, Traits
from ortdeploy.manifest.document import Document, Path
from ortdeploy.providers.catalogue import find_provider, full_name, short_name
from ortdeploy.units import parse_size

PROFILES, OTHERWISE = "profiles", "otherwise"
BASE, REFUSE = "base", "refuse"
ARCHITECTURES: Mapping[str, str] = {
    **dict.fromkeys(("amd64", "x64", "x86-64", "x86_64"), "x86_64"),
    **dict.fromkeys(("aarch64", "arm64"), "aarch64"),
    **dict.fromkeys(("armhf", "armv7", "armv7l"), "armv7l"),
    "riscv64": "riscv64",
}
"""What architectures are called, in lower case, and their names in Linux."""

_COMPARISON = re.compile(r"(>=|<=|>|<) *([^,]+?) *(?:,|\Z)")
_MOST = 1 << 62
_TRIED = frozenset({"provider", "device"})
"""Keys that may need a session, so they are asked last."""
_OF_DEVICES = ("provider", "kind", "vendor", "name")
_FIELDS = {
    "architecture": "machine.architecture",
    "system": "machine.system",
    "memory": "machine.total_memory_bytes",
    "cores": "machine.online_cores",
    "name": "name",
    "labels": "labels",
    "provider": "runtime.opens",
    "device": "devices and runtime.opens",
}


class Term(Struct, frozen=True, kw_only=True):
    """A condition about one fact.

    `wanted` by key: words (architecture, system, labels), a range of whole numbers without its end (memory, cores;
    `text` as it is written), a glob (name), or fields with globs (provider, device).
    """

    key: str
    fact: str
    wanted: Any
    at: Path
    text: str = ""

    @property
    def field(self) -> str:
        """The field of a device file that tells the fact."""
        return _FIELDS[self.key]

    def holds(self, value: Fact) -> bool:
        """Return whether the condition holds for a value that is known."""
        if self.key in _TRIED:
            return bool(value)
        if self.key == "name":
            return fnmatchcase(str(value), self.wanted)
        if self.key in {"memory", "cores"}:
            return isinstance(value, int) and self.wanted[0] <= value < self.wanted[1]
        return value in self.wanted


class When(Struct, frozen=True, kw_only=True):
    """The conditions of one profile: `terms` must all hold, `excluded` must not all hold (empty: nothing is)."""

    profile: str
    at: Path
    terms: tuple[Term, ...]
    excluded: tuple[Term, ...] = ()


class Variants(Struct, frozen=True, kw_only=True):
    """The conditions of a manifest's profiles, and what runs where none holds: a profile, BASE or REFUSE."""

    whens: tuple[When, ...]
    otherwise: str

    def terms(self) -> Iterator[Term]:
        """Yield the terms of all conditions."""
        yield from (term for when in self.whens for term in (*when.terms, *when.excluded))

    def provider_names(self) -> Iterator[tuple[str, Path]]:
        """Yield the providers that are asked for by name, as they are written, and where."""
        yield from ((dict(term.wanted)["provider"], term.at) for term in self.terms() if term.key == "provider")


Ask = Callable[[Term], Fact | bool]
"""Return the value of a term's fact; raise UnknownFactError if it is not known."""


class UnknownFactError(Exception):
    """A fact is not known."""


def read_variants(document: Document) -> Variants | None:
    """Return the conditions in a document that the schema has accepted; None if no profile has any."""
    profiles = document.data.get(PROFILES, {})
    whens = tuple(_when(name, one["when"]) for name, one in profiles.items() if isinstance(one, dict) and "when" in one)
    return Variants(whens=whens, otherwise=profiles.get(OTHERWISE, BASE)) if whens else None


def _when(profile: str, data: Mapping[str, Any]) -> When:
    at: Path = (PROFILES, profile, "when")
    terms = tuple(_terms({key: value for key, value in data.items() if key != "not"}, at))
    return When(profile=profile, at=at, terms=terms, excluded=tuple(_terms(data.get("not", {}), (*at, "not"))))


def _terms(data: Mapping[str, Any], at: Path) -> Iterator[Term]:
    for key, value in data.items():
        here = (*at, key)
        if key == "labels":
            for label, words in value.items():
                yield Term(key=key, fact=f"labels.{label}", wanted=_words(words), at=(*here, label))
        elif key == "provider":
            for name in _words(value):
                yield Term(key=key, fact=f"provider {short_name(name)}", wanted=(("provider", name),), at=here)
        elif key == "device":
            globs = tuple((field, value[field]) for field in _OF_DEVICES if field in value)
            shown = " ".join(f"{field}={glob}" for field, glob in globs)
            yield Term(key=key, fact=f"device {shown}", wanted=globs, at=here)
        elif key in {"memory", "cores"}:
            yield Term(key=key, fact=key, wanted=read_range(value), at=here, text=value)
        elif key == "architecture":
            names = tuple(ARCHITECTURES[word.lower()] for word in _words(value))
            yield Term(key=key, fact=key, wanted=names, at=here)
        else:
            yield Term(key=key, fact=key, wanted=value if key == "name" else _words(value), at=here)


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def comparisons(text: str) -> list[tuple[str, int]]:
    """Return the operators of `>= 6GiB, < 20GiB` with their bounds, in bytes if they have a unit."""
    found = _COMPARISON.findall(text)
    return [(sign, int(bound) if bound.isdecimal() else parse_size(bound) or 0) for sign, bound in found]


def read_range(text: str) -> tuple[int, int]:
    """Return the least number that comparisons allow, and the least above those."""
    low, high = 0, _MOST
    for sign, bound in comparisons(text):
        if sign.startswith(">"):
            low = max(low, bound + (sign == ">"))
        else:
            high = min(high, bound + (sign == "<="))
    return low, high


def cheap(traits: Traits, term: Term) -> Fact:
    """Return the value of a fact that needs no session. Raises UnknownFactError."""
    if term.key == "labels":
        if traits.labels is None:
            raise UnknownFactError
        return traits.labels.get(term.fact.removeprefix("labels."))
    value: Fact = getattr(traits, term.key)
    if value is None:
        raise UnknownFactError
    if term.key == "architecture":
        return ARCHITECTURES.get(str(value).lower(), value)
    return str(value).lower() if term.key == "system" else value


def offers(devices: Sequence[OfferedDevice], term: Term, opens: Callable[[OfferedDevice], bool | None]) -> bool:
    """Return whether a device opens that is as a term says. Raises UnknownFactError."""
    found: bool | None = False
    for device in devices:
        like = _is_like(device, term.wanted)
        does = like if like is False else _both(like, opens(device))
        if does:
            return True
        found = None if does is None else found
    if found is None:
        raise UnknownFactError
    return False


def _is_like(device: OfferedDevice, wanted: Sequence[tuple[str, str]]) -> bool | None:
    """Return whether a device is as globs say; None if what they ask for is not known."""
    answer: bool | None = True
    for field, glob in wanted:
        value = getattr(device, field)
        if value is None:
            answer = _both(answer, None)
        elif field == "provider":
            own = {full_name(value).casefold(), short_name(value).casefold()}
            known = find_provider(glob)
            matching = known.name == full_name(value) if known else any(fnmatchcase(o, glob.casefold()) for o in own)
            answer = _both(answer, matching)
        else:
            answer = _both(answer, fnmatchcase(value.casefold(), glob.casefold()))
    return answer


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Return Kleene's conjunction."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def judge(when: When, ask: Ask) -> tuple[bool | None, tuple[Term, ...]]:
    """Return whether a `when` holds, None if that is not known, and the terms whose facts are not.

    No fact that needs a session is asked for if others decide.
    """
    unknown: dict[Term, None] = {}

    def held(term: Term) -> bool | None:
        try:
            return term.holds(ask(term))
        except UnknownFactError:
            unknown[term] = None
            return None

    answer = _holds(when, lambda term: None if takes_a_session(term) else held(term))
    if answer is None:
        unknown.clear()
        answer = _holds(when, held)
    return answer, tuple(unknown) if answer is None else ()


def _holds(when: When, held: Callable[[Term], bool | None]) -> bool | None:
    wanted = _all_hold(when.terms, held)
    if wanted is False or not when.excluded:
        return wanted
    avoided = _all_hold(when.excluded, held)
    return _both(wanted, None if avoided is None else not avoided)


def _all_hold(terms: Sequence[Term], held: Callable[[Term], bool | None]) -> bool | None:
    answer: bool | None = True
    for term in sorted(terms, key=takes_a_session):
        answer = _both(answer, held(term))
        if answer is False:
            break
    return answer


def takes_a_session(term: Term) -> bool:
    """Return whether a term is about what opens."""
    return term.key in _TRIED


_Box = Mapping[str, frozenset[Fact]]


class Boxes:
    """The `when` of a manifest as sets over those values of each fact that their terms tell apart."""

    def __init__(self, whens: Sequence[When]) -> None:
        self._values: dict[str, set[Fact]] = {}
        for term in (term for when in whens for term in (*when.terms, *when.excluded)):
            self._values.setdefault(_axis(term), set()).update(_marks(term))

    def is_empty(self, when: When) -> bool:
        """Return whether no machine is as a `when` says."""
        return not self._boxes(when)

    def implies(self, when: When, other: When) -> bool:
        """Return whether `other` holds wherever `when` does."""
        wanted, avoided = self._box(other.terms), self._box(other.excluded)
        for box in self._boxes(when):
            inside = all(box.get(axis, self._all(axis)) <= allowed for axis, allowed in wanted.items())
            apart = not avoided or any(not box.get(axis, self._all(axis)) & out for axis, out in avoided.items())
            if not (inside and apart):
                return False
        return True

    def _all(self, axis: str) -> frozenset[Fact]:
        return frozenset(self._values[axis])

    def _box(self, terms: Sequence[Term]) -> dict[str, frozenset[Fact]]:
        box: dict[str, frozenset[Fact]] = {}
        for term in terms:
            axis = _axis(term)
            allowed = frozenset(value for value in self._values[axis] if _allows(term, value))
            box[axis] = box.get(axis, self._all(axis)) & allowed
        return box

    def _boxes(self, when: When) -> list[_Box]:
        """Return boxes that together are what a `when` allows, none of them empty."""
        wanted, avoided = self._box(when.terms), self._box(when.excluded)
        found: list[_Box] = [wanted] if not avoided else []
        for axis, out in avoided.items():
            found.append({**wanted, axis: wanted.get(axis, self._all(axis)) - out})
        return [box for box in found if all(box.values())]


def _axis(term: Term) -> str:
    """Return what a term is about; globs of names are apart, because nobody knows which names there are."""
    return f"name {term.wanted}" if term.key == "name" else term.fact


def _marks(term: Term) -> tuple[Fact, ...]:
    """Return values of an axis that a term tells apart, among them some that it does not allow."""
    if term.key == "name" or term.key in _TRIED:
        return (True, False)
    if term.key in {"memory", "cores"}:
        low, high = term.wanted
        return tuple(one for one in (low - 1, low, high - 1, high) if 0 <= one < _MOST)
    return (*term.wanted, None)


def _allows(term: Term, value: Fact) -> bool:
    if term.key == "name" or term.key in _TRIED:
        return value is True
    return term.holds(value)


def implied(whens: Sequence[When]) -> Iterator[tuple[When, When]]:
    """Yield each `when` with another one that holds wherever it does."""
    boxes = Boxes(whens)
    possible = [when for when in whens if not boxes.is_empty(when)]
    yield from ((one, other) for one, other in permutations(possible, 2) if boxes.implies(one, other))
