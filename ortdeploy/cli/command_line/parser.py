"""How a command line is read: one value a flag, variables of the environment, and wrong usage in words."""

import argparse
import os
import sys
from contextlib import suppress
from functools import partial

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

argparse._ = str  # type: ignore[attr-defined]  # or each start looks for translations, which nobody has made


class _Once(argparse.Action):
    """Stores the value of a flag, and refuses a second one, which would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: "Any",
        option_string: str | None = None,
    ) -> None:
        given = namespace.__dict__.setdefault(_GIVEN, set())
        if option_string is not None and self.dest in given:
            parser.error(f"{option_string} is given twice, and takes one value")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


_GIVEN = "_given"
_VARIABLES: dict[str, tuple[str, str | None]] = {
    "color": ("ORTDEPLOY_COLOR", "auto"),
    "format": ("ORTDEPLOY_FORMAT", "text"),
    "log_format": ("ORTDEPLOY_LOG_FORMAT", None),
    "profile": ("ORTDEPLOY_PROFILE", None),
    "shard": ("ORTDEPLOY_SHARD", None),
    "state_dir": ("ORTDEPLOY_STATE_DIR", None),
}
"""The environment variables that replace missing flags, and the default without either."""
_AS_WRITTEN = frozenset({"ortdeploy diff", "ortdeploy lock"})
"""Commands about the text of manifests, which take a profile from their flag alone."""
_NEEDED = "the following arguments are required: "
_WORDS = {"expected one argument": "needs a value", "expected at least one argument": "needs a value"}
_KINDS = {"int": "a whole number", "float": "a number"}
"""What argparse calls the types of values, in words."""
_PATHS = frozenset({"DIR", "FILE", "FILE.onnx_adapter", "FILE|FOLDER", "MODEL.onnx", "PATH", "PLAN", "SOURCE"})
"""The placeholders of arguments that take local files and folders."""


def columns() -> int:
    """Return the width of help texts: the terminal's, or COLUMNS.

    argparse asks shutil for it at each flag that is added, and shutil brings every way to compress.
    """
    written = os.environ.get("COLUMNS", "")
    columns = int(written) if written.isdecimal() else 0
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or no standard output at all
        columns = columns or os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    return (columns or 80) - 2


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of up to `width` columns. No word is broken, or a flag could not be copied."""
    import textwrap  # noqa: PLC0415  only for help

    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class _Help(argparse.HelpFormatter):
    """Help texts in lines of whole words."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(f"{indent}{line}" for line in wrapped(text, width - len(indent)))


class Parser(argparse.ArgumentParser):
    """A parser that exits with 64 for wrong usage, so that it cannot look like a rejection or like changes.

    Flags cannot be abbreviated. The command itself reports flags that it does not know.
    """

    def __init__(self, *arguments: "Any", **settings: "Any") -> None:
        settings["allow_abbrev"] = False
        settings["formatter_class"] = partial(_Help, width=columns())
        super().__init__(*arguments, **settings)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> "NoReturn":
        """Raise UsageError."""
        unknown = self._unknown_flag() if message.startswith(_NEEDED) else None
        if unknown is not None:  # what was typed wrongly comes before what was not typed
            message = self._unknown(unknown)
        from ortdeploy.diagnostics import UsageError  # noqa: PLC0415  only when something is wrong

        raise UsageError(f"{self._in_words(message)}\n{self._usage()}")

    def _unknown_flag(self) -> str | None:
        """Return the first flag on the command line that this command does not have."""
        flags = self._option_string_actions
        for text in self._typed[: self._typed.index("--") if "--" in self._typed else None]:
            is_flag = text.startswith("-") and len(text) > 1 and not text[1].isdecimal()
            if is_flag and text.partition("=")[0] not in flags and (text.startswith("--") or text[:2] not in flags):
                return text
        return None

    def _in_words(self, message: str) -> str:
        """Return a complaint of argparse as a sentence about the command that was typed."""
        if message.startswith(_NEEDED):
            names = message.removeprefix(_NEEDED).split(", ")
            return f"{self.prog} needs {' and '.join(map(self._described, names))}"
        flag, _, rest = message.removeprefix("argument ").partition(": ")
        if not message.startswith("argument ") or not rest:
            return message
        if rest.startswith("ignored explicit argument"):
            return f"{flag} takes no value"
        for kind, words in _KINDS.items():
            if rest.startswith(f"invalid {kind} value: "):
                return f"{flag}: {rest.partition(': ')[2]} is not {words}"
        return f"{flag} {_WORDS[rest]}" if rest in _WORDS else f"{flag}: {rest}"

    def _described(self, name: str) -> str:
        """`PATH (a manifest, or a folder of them)`: an argument that is missing, with what its help says."""
        for action in self._actions:
            if name in (action.metavar, action.dest, "/".join(action.option_strings)) and action.help:
                value = f" {action.metavar}" if action.option_strings else ""
                return f"{name}{value} ({action.help})"
        return name

    def _usage(self) -> str:
        """Return one line: what stands behind the command, without the flags that may be left out."""
        words = [self.prog, "[FLAG ...]"]
        for action in self._actions:
            name = str(action.metavar or action.dest)
            if action.option_strings:
                words += [action.option_strings[-1], name] if action.required else []
            else:
                shape = {"+": f"{name} [{name} ...]", "?": f"[{name}]", argparse.PARSER: f"{name} ..."}
                words.append(shape.get(str(action.nargs), name))
        return f"usage: {' '.join(words)}\n{self.prog} --help lists its flags and what they mean."

    def _check_value(self, action: argparse.Action, value: "Any") -> None:
        """Refuse a value that is none of the choices, and name the nearest one."""
        if action.choices is None or value in action.choices:
            return
        from ortdeploy.diagnostics import did_you_mean  # noqa: PLC0415  only when something is wrong

        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(action, f'there is no "{value}". {did_you_mean(str(value), known)}')

    def parse_known_args(  # type: ignore[override]  # of the two ways to call it, ours
        self, args: "Sequence[str] | None" = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Take variables of the environment for flags that are not given. Raises UsageError."""
        self._typed = list(sys.argv[1:] if args is None else args)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        known.__dict__.pop(_GIVEN, None)
        for action in self._actions:
            if action.dest in _VARIABLES and getattr(known, action.dest) is None:
                self._take_variable(known, action)
            if action.metavar in _PATHS:
                self._hold_local(action, getattr(known, action.dest))
        return known, unknown

    def _hold_local(self, action: argparse.Action, value: "Any") -> None:
        """Refuse an empty path, and a URL for a local path: its parts, with secrets, would become names of folders."""
        for path in value if isinstance(value, list) else [value]:
            flag = "/".join(action.option_strings) or action.metavar
            if isinstance(path, str) and not path:
                self.error(f"{flag} is empty; a variable that the shell replaced may not be set")
            if path == "-":
                self.error(f"{flag} takes the name of a file; standard input and output have none. Write - as ./-")
            if isinstance(path, str) and "://" in path:
                from ortdeploy.files.urls import is_url, parse_url  # noqa: PLC0415  only when something may be wrong

                if is_url(path):
                    self.error(f'{flag} takes a local path, and "{parse_url(path).shown}" is a URL')

    def _take_variable(self, known: argparse.Namespace, action: argparse.Action) -> None:
        if action.dest == "profile" and self.prog in _AS_WRITTEN:
            return
        setattr(known, action.dest, self._from_variable(action))
        if action.dest == "profile" and known.profile is not None:
            known.environment_profile = True  # a saved plan has its own, and does not mind

    def _from_variable(self, action: argparse.Action) -> str | None:
        """Return the value of the environment variable for a flag that is not given, or the default."""
        variable, default = _VARIABLES[action.dest]
        value = os.environ.get(variable) or default
        if action.choices is not None and value is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            self.error(f'{variable} is "{value}", and {self.prog} takes {choices}. Change it, or give the flag')
        return value

    def _unknown(self, text: str) -> str:
        if not text.startswith("-"):
            quotes = '. Quote a pattern: --device "devices/*.yaml"' if "--device" in self._option_string_actions else ""
            return f'"{text}" is one argument too many{quotes}'
        from ortdeploy.diagnostics import nearest  # noqa: PLC0415  only when something is wrong

        flag = text.partition("=")[0]
        names = sorted(one[2:] for action in self._actions for one in action.option_strings if one.startswith("--"))
        found = nearest(flag.lstrip("-"), names)
        advice = f'Did you mean "--{found}"?' if found else f"Known: {', '.join(f'--{name}' for name in names)}."
        return f"{self.prog} has no flag {flag}. {advice}"
