"""Parses YAML text into plain data and a table *path → span*. No other module parses YAML.

Built on PyYAML's events, which come flat however deep a hostile file nests. Everything that YAML would silently
accept and a person would not expect is a diagnostic here: duplicate keys, non-string keys, alias cycles and bombs,
several documents, tags, words whose meaning depends on the YAML version.
"""

from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct, field

from ortdeploy.diagnostics import Certainty, Diagnostic, OrtdeployError, Severity, Span
from ortdeploy.files.opening import open_regular
from ortdeploy.manifest.pages import SUMMARIES
from ortdeploy.manifest.scalars import resolve_plain

Path = tuple[str | int, ...]
"""The way to a value: keys and list indices from the top."""

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 200_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # four times faster where libyaml is there, the same events


_YAML_ADVICE = {
    "while scanning an alias": "Text that begins with * must be quoted.",
    "unknown escape character": "Write / between folders, or put text with \\ into single quotes.",
    "mapping values are not allowed": "A space follows each colon; text with a colon and a space in it is quoted.",
    "while parsing a block mapping": "Keys of one mapping begin in the same column.",
}
"""What to do about an error of YAML, by a part of libyaml's words."""


def read_bounded(path: str, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file; of one that has too many, one more than it may. Raises OrtdeployError."""
    try:
        with open_regular(path) as file:
            return file.read(most + 1)
    except (OSError, ValueError) as error:
        raise OrtdeployError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


class Document(Struct, frozen=True, kw_only=True):
    """Plain data, where each value and each key stands, and which booleans were written as words like `yes`.

    `whole` is what a message calls all of it.
    """

    path: str
    data: Any
    spans: dict[Path, Span]
    keys: dict[Path, Span]
    words: dict[Path, str]
    whole: str = "the manifest"

    def locate(self, path: Path) -> Span:
        """Return where a value stands; for one that is not written, the key of the nearest thing above it."""
        return self.spans[path] if path in self.spans else self.locate_key(path)

    def locate_key(self, path: Path) -> Span:
        """Return where the key of a value stands, or the value when it has none (list items, the top)."""
        while path not in self.spans and path:
            path = path[:-1]
        return self.keys.get(path) or self.spans[path]


def stage_diagnostic(rule: str, detail: str, span: Span) -> Diagnostic:
    """Make a diagnostic of the document and schema stages, whose summaries are in `pages`."""
    severity = Severity.WARNING if rule == "byte-order-mark" else Severity.ERROR
    return Diagnostic(
        rule=rule, severity=severity, summary=SUMMARIES[rule], detail=detail, span=span, certainty=Certainty.FILES
    )


def parse_document(raw: bytes, path: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """Turn a file's bytes into a document and everything that is wrong with it as YAML."""
    parser = _Parser(path)
    text = parser.decode(raw)
    if text is None:
        return None, tuple(parser.problems)
    root = parser.compose(text)
    if root is None:
        return None, tuple(parser.problems)
    document = parser.flatten(root)
    return document, tuple(parser.problems)


class _Node(Struct):
    """A composed value: a scalar, a list of nodes, or a list of (key node, value node)."""

    span: Span
    value: Any = None
    items: "list[_Node] | None" = None
    pairs: "list[tuple[_Node, _Node]] | None" = None
    word: str | None = None
    text: str | None = None
    open: bool = False
    pending: "_Node | None" = None

    def add(self, child: "_Node") -> None:
        """Append to a list; in a mapping, alternate between key and value."""
        if self.items is not None:
            self.items.append(child)
        elif self.pairs is not None and self.pending is not None:
            self.pairs.append((self.pending, child))
            self.pending = None
        else:
            self.pending = child


_Pairs = list[tuple[_Node, _Node]]


class _TooMuchError(Exception):
    """Composing or flattening stopped; the problem is already noted."""


class _Parser(Struct):
    path: str
    problems: list[Diagnostic] = field(default_factory=list)
    anchors: dict[str, _Node] = field(default_factory=dict)
    nodes: int = 0

    def note(self, rule: str, detail: str, span: Span | None = None) -> None:
        self.problems.append(stage_diagnostic(rule, detail, span or Span(path=self.path, line=1, column=1)))

    def decode(self, raw: bytes) -> str | None:
        if len(raw) > MAX_BYTES:
            self.note("oversized-file", f"The file has {len(raw):,} bytes; a manifest may have {MAX_BYTES:,}.")
            return None
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            self.note("not-utf8", "The file is UTF-16. Save it as UTF-8.")
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            line = before.count(b"\n") + 1
            column = len(before.rpartition(b"\n")[2].decode("utf-8")) + 1
            detail = f"The byte 0x{raw[error.start]:02x} is not UTF-8. Save the file as UTF-8."
            self.note("not-utf8", detail, Span(path=self.path, line=line, column=column))
            return None
        if text.startswith("\ufeff"):
            self.note("byte-order-mark", "The file begins with a byte order mark. It is ignored; save without one.")
        return text.removeprefix("\ufeff")

    def compose(self, text: str) -> _Node | None:
        """Build the node tree; None when there is no document to look at."""
        try:
            root = self._compose_events(yaml.parse(text, Loader=_LOADER))
        except yaml.MarkedYAMLError as error:
            self._note_syntax(error, text)
            return None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            column = error.position - text.rfind("\n", 0, error.position)
            span = Span(path=self.path, line=line, column=column)
            character = error.character if isinstance(error.character, int) else ord(error.character)
            self.note("yaml-syntax", f"The character U+{character:04X} is not allowed in YAML. Remove it.", span)
            return None
        except _TooMuchError:
            return None
        if root is None:
            self.note("empty-manifest", "There is nothing but white space and comments in this file.")
        return root

    def _note_syntax(self, error: yaml.MarkedYAMLError, text: str) -> None:
        problem = (error.problem or "The text is not YAML").strip()
        detail = f"{problem[0].upper()}{problem[1:]}{' ' + error.context if error.context else ''}."
        lines = text.splitlines() or [""]
        mark = error.problem_mark or error.context_mark
        if mark is not None and mark.line >= len(lines):  # at the end of the file: show where it began
            mark = error.context_mark or mark
        line = min(mark.line, len(lines) - 1) if mark is not None else 0
        column = mark.column if mark is not None else 0
        written = lines[line]
        if "\t" in written[: len(written) - len(written.lstrip())]:
            detail += " YAML indents with spaces only: replace the tab."
        said = f"{problem} {error.context}"
        detail += "".join(f" {advice}" for told, advice in _YAML_ADVICE.items() if told in said)
        self.note("yaml-syntax", detail, Span(path=self.path, line=line + 1, column=column + 1))

    def _compose_events(self, events: Iterator[Any]) -> _Node | None:
        root: _Node | None = None
        stack: list[_Node] = []
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    detail = "A manifest is one document. Put what follows --- into a file of its own."
                    self.note("several-documents", detail, self._span(event))
                    return root
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close(stack.pop(), event)
            elif isinstance(event, yaml.NodeEvent):
                node = self._node(event)
                if stack:
                    stack[-1].add(node)
                elif not (node.text == "" and node.value is None):
                    root = node
                if isinstance(event, yaml.CollectionStartEvent):
                    node.open = True
                    stack.append(node)
                    if len(stack) > MAX_DEPTH:
                        self.note("too-deep", f"The nesting is deeper than {MAX_DEPTH} levels.", node.span)
                        raise _TooMuchError
        return root

    def _span(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        behind = end.column + 1 if end.line == start.line and end.column > start.column else None
        return Span(path=self.path, line=start.line + 1, column=start.column + 1, end=behind)

    def _close(self, node: _Node, event: Any) -> None:
        """Note where a list or mapping ends: its bracket, or the first key of a mapping without brackets."""
        node.open = False
        span, end = node.span, event.end_mark
        if event.start_mark.column < end.column:  # a bracket
            behind = end.column + 1 if end.line + 1 == span.line else None
        else:
            first = node.pairs[0][0].span if node.pairs else span
            behind = first.end if (first.line, first.column) == (span.line, span.column) else None
        if behind != span.end:
            node.span = Span(path=span.path, line=span.line, column=span.column, end=behind)

    def _node(self, event: Any) -> _Node:
        span = self._span(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), span)
        if event.tag not in (None, "!"):
            self.note("yaml-tag", f"The tag {event.tag} has no meaning in a manifest. Remove it.", span)
        if isinstance(event, yaml.SequenceStartEvent):
            node = _Node(span, items=[])
        elif isinstance(event, yaml.MappingStartEvent):
            node = _Node(span, pairs=[])
        else:
            node = self._scalar(event, span)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _scalar(self, event: Any, span: Span) -> _Node:
        if event.style:  # quoted, or a block scalar: text
            return _Node(span, value=event.value, text=event.value)
        scalar = resolve_plain(event.value)
        if scalar.problem:
            detail = f"{scalar.problem[0].upper()}{scalar.problem[1:]}. Write the plain number, or quote it as text."
            self.note("ambiguous-scalar", detail, span)
        return _Node(span, value=scalar.value, text=event.value, word=scalar.word)

    def _alias(self, name: str, span: Span) -> _Node:
        target = self.anchors.get(name)
        if target is None:
            self.note("undefined-alias", f"No anchor &{name} stands before this alias.", span)
        elif target.open:
            self.note("alias-cycle", f"The alias *{name} stands inside its own anchor and would never end.", span)
        else:
            return target
        return _Node(span, text="")

    def flatten(self, root: _Node) -> Document | None:
        """Turn nodes into plain data and note every place; aliases keep the place of their anchor."""
        document = Document(path=self.path, data=None, spans={}, keys={}, words={})
        try:
            data = self._value(root, (), document)
        except _TooMuchError:
            return None
        return Document(path=self.path, data=data, spans=document.spans, keys=document.keys, words=document.words)

    def _value(self, node: _Node, at: Path, document: Document) -> Any:
        self._count(node, len(at))
        document.spans[at] = node.span
        if node.items is not None:
            return [self._value(item, (*at, index), document) for index, item in enumerate(node.items)]
        if node.pairs is not None:
            return self._mapping(node, at, document)
        if node.word:
            document.words[at] = node.word
        return node.value

    def _count(self, node: _Node, depth: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            detail = (
                f"With its aliases unfolded, the manifest has more than {MAX_NODES:,} values or {MAX_DEPTH} levels."
            )
            self.note("alias-bomb", detail, node.span)
            raise _TooMuchError

    def _mapping(self, node: _Node, at: Path, document: Document) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own, inherited = self._split_merges(node)
        for key_node, value_node in own:
            key = self._key(key_node)
            if key in data:
                first = document.keys[(*at, key)]
                detail = f'"{key}" is written here and on line {first.line}. YAML would keep only one of them.'
                self.note("duplicate-key", detail, key_node.span)
            elif key is not None:
                self._entry(key, key_node, value_node, data, at, document)
        for key_node, value_node in inherited:
            key = self._key(key_node)
            if key is not None and key not in data:
                self._entry(key, key_node, value_node, data, at, document)
        return data

    def _entry(
        self, key: str, key_node: _Node, node: _Node, data: dict[str, Any], at: Path, document: Document
    ) -> None:
        document.keys[(*at, key)] = key_node.span
        data[key] = self._value(node, (*at, key), document)

    def _split_merges(self, node: _Node, depth: int = 0) -> tuple[_Pairs, _Pairs]:
        """Return a mapping's own pairs, and those that `<<` brings, which never replace them."""
        own: _Pairs = []
        inherited: _Pairs = []
        for key, value in node.pairs or ():
            if key.text == "<<":
                inherited += self._merge_pairs(value, depth + 1)
            else:
                own.append((key, value))
        return own, inherited

    def _merge_pairs(self, value: _Node, depth: int) -> _Pairs:
        self._count(value, depth)
        sources = [value] if value.pairs is not None else value.items or []
        if not sources or any(source.pairs is None for source in sources):
            self.note("yaml-syntax", "What << merges must be a mapping or a list of mappings.", value.span)
            return []
        return [pair for source in sources for part in self._split_merges(source, depth) for pair in part]

    def _key(self, node: _Node) -> str | None:
        if node.items is not None or node.pairs is not None:
            self.note("non-string-key", "A key must be text, not a list or a mapping.", node.span)
            return None
        is_share = isinstance(node.value, float) and str(node.text).startswith(
            "0."
        )  # of a quantile; its text is the key
        if not isinstance(node.value, str) and not is_share:
            kind = "nothing" if node.value is None else type(node.value).__name__
            detail = f'YAML reads the key {node.text or "(empty)"} as {kind}, not as text. Quote it: "{node.text}".'
            self.note("non-string-key", detail, node.span)
        return node.text
