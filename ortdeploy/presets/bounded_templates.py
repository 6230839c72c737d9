"""Renders chat templates as transformers does, with Jinja's sandbox, within a bound.

A template is a program that came with the model. The sandbox keeps it from the rest of Python, and not from looping or
from doubling a text for ever. So it pays for what it does: a turn of a loop and a call of a macro by the text in them,
a value by its size; and before it is made, where a factor decides the size. Each payment is a step, too: it takes as
long as thousands of letters do. What it may spend of both grows with the messages, and some templates look from each
message through all others.
"""

import json
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from functools import wraps
from operator import length_hint
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.nodes import EnvironmentAttribute
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_DEEPEST, _DEAREST = 200, 32
_LEAST, _FACTOR, _STEPS, _OF_PAIRS, _MOST = 100_000, 40, 4, 2, 6_000_000
"""What a template may spend: this much, and more for each character of the messages: of sizes, and of steps; and for
each pair of messages. No template takes more steps than the last number: they take about half a minute."""
_FREE = ("count", "d", "default", "first", "items", "last", "length")
_OF_PARTS = (
    "abs", "float", "int", "list", "map", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
)  # fmt: skip
_OF_WHOLES = (
    "capitalize", "dictsort", "e", "escape", "indent", "join", "lower", "max", "min", "replace", "sort", "string",
    "title", "trim", "unique", "upper",
)  # fmt: skip
"""The filters that look at no more than an item; at a value, or at its items; and at all that is in them. Others are
not known."""
_BY_ITEM = ("dictsort", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "unique")
"""Those of them that compute something of each item."""
_OF_JINJA = ("_loop_vars", "_block_vars")
"""What Jinja gives to each call beside."""
_TESTS = ("boolean", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number", "sequence",
          "string", "true", "undefined")  # fmt: skip
_COMPARISONS = ("==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=",
                "ge", "in")  # fmt: skip
_METHODS: Mapping[type, tuple[str, ...]] = {
    str: (
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace",
        "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    ),
    list: (),
    tuple: (),
    dict: ("get", "items", "keys", "values"),
    int: (),
    float: (),
}  # fmt: skip


class UnboundedError(SecurityError):
    """Why a template may not run, or not on, in words."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, in which a template pays."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))
    intercepted_unops = frozenset(("+", "-"))

    def __init__(self) -> None:
        """Have what transformers has, but for filters, tests and methods that no template of a known model needs."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # what is constant would be worked out before anything is paid
            finalize=_paid_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.left = self.steps = _LEAST
        self.is_late = False
        known: dict[str, Any] = dict(self.filters)
        tests: dict[str, Any] = dict(self.tests)
        self.filters = {name: known[name] for name in _FREE}
        for name in (*_OF_PARTS, *_OF_WHOLES):
            size = length_hint_of if name in _OF_PARTS else size_of
            self.filters[name] = self._paid(known[name], size, _GROWTH.get(name), by_item=name in _BY_ITEM)
        self.filters["tojson"] = self._paid(_to_json, size_of, _growth_of_json)
        self.tests = {name: tests[name] for name in _TESTS}
        self.tests |= {name: self._paid(tests[name], size_of) for name in _COMPARISONS}
        self.globals = {name: self.globals[name] for name in ("dict", "namespace", "range")}
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def fill(self, messages: Any) -> None:
        """Give what a rendering of messages may spend. Raises UnboundedError."""
        size, pairs = size_of(messages, sys.maxsize), min(len(messages) ** 2, _MOST)
        self.left = _LEAST + _FACTOR * size + _OF_PAIRS * pairs
        self.steps = min(_LEAST + _STEPS * size + _OF_PAIRS * pairs, _MOST)

    def pay(self, price: int, steps: int = 1) -> bool:
        """Take the price of what is done, or raise UnboundedError; return True, for a condition."""
        self.left -= price
        self.steps -= steps
        if self.left < 0 or self.steps < 0:
            raise UnboundedError("it loops for too long, or makes too much text of the messages")
        if self.is_late:
            raise UnboundedError("it was ended")
        return True

    def paid(self, value: Any) -> Any:
        """Return a value whose whole size is paid; of what is read once, a list."""
        value = _listed(value)
        self.pay(size_of(value, self.left))
        return value

    def compared(self, value: Any) -> Any:
        """Return a value that is compared. That is fast for texts, and nothing is made of them."""
        if not isinstance(value, str):
            return self.paid(value)
        self.pay(len(value) // _DEAREST)
        return value

    def part(self, value: Any) -> Any:
        """Return a part of a list or a text, whose length is paid."""
        self.pay(length_hint_of(value))
        return value

    def joined(self, *values: Any) -> str:
        """Return what the operator ~ makes."""
        self.pay(size_of(values, self.left))
        return "".join(map(str, values))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return what an operator makes, whose size is paid before."""
        if operator == "%" and isinstance(left, str):
            raise UnboundedError("it formats texts with %")
        self.pay(_size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        """Return a number with another sign, whose size is paid."""
        return super().call_unop(context, operator, self.part(arg))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; a tuple is paid, because all in it is looked at."""
        return super().getitem(obj, self.paid(argument) if isinstance(argument, tuple) else argument)

    def call(self, context: Any, obj: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a macro, a function or a method, whose result is paid; and what it takes, unless it only hands it on."""
        if getattr(obj, "__self__", None) is self:  # what `_Paying` has put there
            return obj(*arguments)
        self.pay(len(arguments) + len(named))
        if not isinstance(obj, (Macro, LoopContext)):
            arguments = tuple(map(self.paid, arguments))
            self.pay(sum(size_of(one, self.left) for key, one in named.items() if key not in _OF_JINJA))
        subject, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(subject, str):
            growth: Callable[..., int] = _GROWTH_OF_METHODS.get(name, _effort_of_search)
            self.pay(len(subject) + growth(subject, *arguments))
        result = super().call(context, obj, *arguments, **named)
        self.pay(1 if isinstance(result, range) else 1 + length_hint_of(result))  # turns of a range are paid one by one
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute: of values, the methods that are known."""
        known = next((_METHODS[kind] for kind in type(obj).__mro__ if kind in _METHODS), (attr,))
        return attr in known and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Return no way to format: a width would decide the size."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found = super()._parse(source, name, filename)
        if any(found.find(kind) for kind in (nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)):
            raise UnboundedError("it reads other files")
        if found.find(nodes.ScopedEvalContextModifier):
            raise UnboundedError("it escapes texts for a page")
        paying: nodes.Template = _Paying(self).visit(found)
        return paying

    def _paid(
        self,
        function: Callable[..., Any],
        size: Callable[..., int],
        growth: Callable[..., int] | None = None,
        *,
        by_item: bool = False,
    ) -> Callable[..., Any]:
        """Return a filter or a test that pays for what it takes and gives."""
        given = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def paid(*arguments: Any, **named: Any) -> Any:
            values = [_listed(one) for one in arguments[given:]]
            steps = 1 + length_hint_of(values[0]) if by_item else 1
            self.pay(1 + sum(size(one, self.left) for one in (*values, *named.values())), steps)
            if growth is not None:
                self.pay(growth(*values, **named))
            result = function(*arguments[:given], *values, **named)
            self.pay(length_hint_of(result))
            return result

        return paid


class _Paying(NodeTransformer):
    """Lets the turns of loops, the bodies of macros, comparisons, keys and parts of lists pay."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  as the visitor has it
        self._turn(node)
        if node.test is not None:
            node.test = nodes.And(self._call("pay", nodes.Const(1)), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802  as above
        return self._turn(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802  as above
        return self._turn(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802  as above
        return self._turn(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  as above
        self.generic_visit(node)
        return self._call("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  as above
        self.generic_visit(node)
        node.expr = self._call("compared", node.expr)
        for one in node.ops:
            one.expr = self._call("compared", one.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802  as above
        self.generic_visit(node)
        node.key = self._call("paid", node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  as above
        self.generic_visit(node)
        return self._call("part", node) if isinstance(node.arg, nodes.Slice) else node

    def _turn(self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        price = 1 + sum(map(_cost, node.iter_child_nodes())) // _DEAREST
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("pay", nodes.Const(price)), lineno=node.lineno))
        return node

    def _call(self, name: str, *arguments: nodes.Expr) -> nodes.Expr:
        call = nodes.Call(EnvironmentAttribute(name), list(arguments), [], None, None)
        call.set_environment(self._environment)
        return call


def _cost(node: nodes.Node) -> int:
    """Return what a part of a template costs each time, without the bodies in it that pay themselves.

    A text costs its length, what makes a list or calls its space, and all else little.
    """
    if isinstance(node, nodes.TemplateData):
        return _DEAREST * len(node.data)
    pays = isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))
    inner = sum(map(_cost, node.iter_child_nodes(exclude=("body",) if pays else ())))
    return inner + (_DEAREST if isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict, nodes.Call)) else 1)


class _Generation(Extension):
    """The tag by which templates mark what the model writes, for its training."""

    tags = {"generation"}  # noqa: RUF012  as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def size_of(value: Any, left: int) -> int:
    """Return how large a value is with all that is in it, or more than `left`. Raises UnboundedError for what is none.

    A list that is in another twice counts twice, because it is written twice.
    """
    size, level = 1, [value]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for one in level:
            size += length_hint_of(one)
            if isinstance(one, Mapping):
                inner += (*one.keys(), *one.values())
            elif isinstance(one, (list, tuple, KeysView, ValuesView, ItemsView)):
                inner += one
            elif not isinstance(one, (str, int, float, range, Undefined)) and one is not None:
                raise UnboundedError(f"it takes a {type(one).__name__} for a value")
            if size > left:
                return size
        if not inner:
            return size
        level = inner
    raise UnboundedError(f"it puts more than {_DEEPEST} lists into one another")


def length_hint_of(value: Any, _left: int = 0) -> int:
    """Return how long a text, a list or a map is; of a number, how many words of a processor it fills."""
    return value.bit_length() // 64 if isinstance(value, int) else length_hint(value)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Iterator) else value


def _size_of_operation(operator: str, left: Any, right: Any) -> int:
    """Return at most how large the result is; of whole numbers, how long it takes; 1 for numbers as they are."""
    if isinstance(left, int) and isinstance(right, int):
        other = max(right, 1) if operator == "**" else right.bit_length()
        return 1 + left.bit_length() * other // 64
    if operator == "*":
        (times, text) = (left, right) if isinstance(left, int) else (right, left)
        return 1 + length_hint_of(text) * (times if isinstance(times, int) else 1)
    return 1 + length_hint_of(left) + length_hint_of(right)


def _growth_of_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **_named: Any) -> int:
    return str(text).count(str(old)) * len(str(new))


def _growth_of_join(values: Any, between: Any = "", *_: Any, **_named: Any) -> int:
    return length_hint_of(values) * len(str(between))


def _growth_of_indent(text: Any, width: Any = 4, *_: Any, **_named: Any) -> int:
    return len(str(text).splitlines()) * (width if isinstance(width, int) else len(str(width)))


def _growth_of_method_join(between: str, values: Any = ()) -> int:
    return _growth_of_join(values, between)


def _effort_of_search(text: Any, *sought: Any, **_named: Any) -> int:
    return sum(len(str(text)) * len(one) // 64 for one in sought if isinstance(one, str))


def _growth_of_json(value: Any, indent: Any = None, separators: Any = None, **_named: Any) -> int:
    of_each = 6 + _depth(value) * (indent if isinstance(indent, int) else len(indent or ""))
    return size_of(value, sys.maxsize) * (of_each + sum(map(len, separators or ())))


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return 1 + max(map(_depth, inner), default=0)


_GROWTH: Mapping[str, Callable[..., int]] = {
    "replace": _growth_of_replace,
    "join": _growth_of_join,
    "indent": _growth_of_indent,
    "trim": _effort_of_search,
}
_GROWTH_OF_METHODS: Mapping[str, Callable[..., int]] = {"replace": _growth_of_replace, "join": _growth_of_method_join}
"""How much longer a text becomes by a number or a text that stands beside it, or how long it takes."""


@pass_context
def _paid_output(context: Any, value: Any) -> Any:
    return context.environment.paid(value)


def _to_json(
    value: Any, *, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as transformers' filter does: as it stands, and not for a page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(pattern: str) -> str:
    """Return the local time, as transformers does."""
    return datetime.now().strftime(pattern)  # noqa: DTZ005  no zone, as there


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
