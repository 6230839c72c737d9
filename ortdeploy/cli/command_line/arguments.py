"""The command line: every command with its flags. `commands/` has what each command does."""

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

_EPILOG = """\
exit codes:
  0            done; also if there is nothing to do, or failures stay within errors:
  1            a manifest was rejected, or a job failed
  2            something would run or differs; only with --detailed-exitcode
  3            a bug of ortdeploy
  4            another run is using the state directory
  5            paused by hours:, until: or pause:; there is more to do
  64           wrong usage
  129/130/143  interrupted (SIGHUP, SIGINT, SIGTERM); the next apply continues
"""


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


def _columns() -> int:
    """Return the width of help texts: the terminal's, or COLUMNS.

    argparse asks shutil for it at each flag that is added, and shutil brings every way to compress.
    """
    written = os.environ.get("COLUMNS", "")
    columns = int(written) if written.isdecimal() else 0
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or no standard output at all
        columns = columns or os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    return (columns or 80) - 2


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of up to `width` columns. No word is broken, or a flag could not be copied."""
    import textwrap  # noqa: PLC0415  only for help

    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class _Help(argparse.HelpFormatter):
    """Help texts in lines of whole words."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(f"{indent}{line}" for line in _wrapped(text, width - len(indent)))


class _Parser(argparse.ArgumentParser):
    """A parser that exits with 64 for wrong usage, so that it cannot look like a rejection or like changes.

    Flags cannot be abbreviated. The command itself reports flags that it does not know.
    """

    def __init__(self, *arguments: "Any", **settings: "Any") -> None:
        settings["allow_abbrev"] = False
        settings["formatter_class"] = partial(_Help, width=_columns())
        super().__init__(*arguments, **settings)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> "NoReturn":
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


class _Program(_Parser):
    """The parser of the program itself, whose help shows the commands by what they are for."""

    def format_help(self) -> str:
        width = _columns()
        tables = {group: [(one, COMMANDS[one][0]) for one in names if one in COMMANDS] for group, names in GROUPS}
        tables["options"] = [(", ".join(one.option_strings), str(one.help)) for one in self._actions[:2]]
        indent = 4 + max(len(name) for rows in tables.values() for name, _ in rows)
        shown = [f"{group}:\n{_table(rows, indent, width)}" for group, rows in tables.items()]
        codes = [(code, meaning) for code, meaning in (line.split(maxsplit=1) for line in _EPILOG.splitlines()[1:])]
        shown.append(f"exit codes:\n{_table(codes, 15, width)}")
        about = "\n".join([*_wrapped(str(self.description), width), f"Start with: {_FIRST}"])
        more = [
            *_wrapped("ortdeploy COMMAND --help shows the flags of a command.", width),
            f"Documents: {_DOCUMENTS}",
        ]
        return "\n\n".join([self.format_usage().rstrip(), about, *shown, "\n".join(more)]) + "\n"


_FIRST = "ortdeploy init MODEL.onnx"
_DOCUMENTS = "https://github.com/OWNER/ortdeploy/tree/main/docs"


def _table(rows: "Sequence[tuple[str, str]]", indent: int, width: int) -> str:
    """Return rows of a name and what it means, which begins `indent` columns from the left."""
    lines = []
    for name, meaning in rows:
        first, *others = _wrapped(meaning, width - indent)
        lines += [f"  {name:<{indent - 2}}{first}", *(f"{' ' * indent}{line}" for line in others)]
    return "\n".join(lines)


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of every command, or of one command `only`, which is faster."""

    class Version(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            from ortdeploy.versions import package_version  # noqa: PLC0415  reading metadata takes as long as the rest

            print(f"ortdeploy {package_version('ortdeploy')}")  # noqa: T201  the front door's own word
            parser.exit()

    parser = _Program(
        prog="ortdeploy",
        description="Runs ONNX models over batches of files, as one YAML manifest declares.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name in COMMANDS if only is None else [only]:
        help_text, add_flags = COMMANDS[name]
        add_flags(commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."))
    return parser


_DIAGNOSTICS = ("text", "json", "github", "sarif")


def _add_manifests(parser: argparse.ArgumentParser, formats: "Sequence[str]", paths: str) -> None:
    """Add the arguments of every command that reads manifests."""
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help=paths)
    form = f"form of the results: {', '.join(formats)} (default: text; also: ORTDEPLOY_FORMAT)"
    add("--format", metavar="FORM", choices=formats, help=form)
    profile = "merge the overrides under profiles: NAME: into the manifest (also: ORTDEPLOY_PROFILE)"
    add("--profile", metavar="NAME", help=profile)
    overlay = "merge a file into the manifest, such as one that ortdeploy tune wrote; may be given several times"
    add("--overlay", metavar="FILE", action="append", default=[], dest="overlays", help=overlay)
    setting = "replace one value, as in --set jobs.read.batch.size=16; may be given several times"
    add("--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", type=_key_value, help=setting)
    label = "a label of this device, for when: of profiles; may be given several times (also: ORTDEPLOY_LABELS)"
    add("--label", metavar="KEY=VALUE", action="append", default=[], dest="labels", type=_key_value, help=label)
    root = "allow paths into this folder; may be given several times"
    add("--allow-root", metavar="DIR", action="append", default=[], dest="roots", help=root)
    state = "folder of the ledger and the caches (default: .ortdeploy beside the manifest; also: ORTDEPLOY_STATE_DIR)"
    add("--state-dir", metavar="DIR", help=state)
    form = "form of the log (default: console on a terminal, json elsewhere; also: ORTDEPLOY_LOG_FORMAT)"
    add("--log-format", choices=("console", "json"), help=form)
    add("--log-file", metavar="FILE", help="append logs to a file instead of stderr")
    _add_common(parser, "print only what is wrong")
    add("-v", "--verbose", action="store_true", help="log more details")


_AS_ASKED = "print only what is wrong, besides what was asked for"
"""What -q means for commands whose output is what somebody asks for, such as a page or a script."""


def _add_common(parser: argparse.ArgumentParser, quiet: str = _AS_ASKED) -> None:
    """Add the flags of every command."""
    add = parser.add_argument
    add("-q", "--quiet", action="store_true", help=quiet)
    color = "whether to use colors (default: auto, on a terminal; also: ORTDEPLOY_COLOR, NO_COLOR, FORCE_COLOR)"
    add("--color", choices=("auto", "always", "never"), help=color)
    add("--no-color", action="store_const", const="never", dest="color", help="the same as --color never")


def _key_value(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a manifest; or the word show, and a bundle")
    add("-o", "--output", metavar="FILE", help="the bundle to write: FILE.tar, or the name of a new folder")
    add("--files", metavar="DIR", help="write the files of the bundle into a new folder, for a tool that signs it")
    signature = "add a signature of what --files has written; may be given several times"
    add("--signature", metavar="FILE", action="append", default=[], dest="signatures", help=signature)
    number = "number of the version; devices take higher ones alone (default: 1)"
    add("--version", metavar="N", type=_number, default=1, dest="number", help=number)
    add("--label", metavar="TEXT", help="a name of the version for people, such as a commit")
    add("--against", metavar="OLD", help="compare with an older bundle, and say what devices will refuse")
    device = "refuse what the machine of this device file would refuse; may be given several times"
    add("--device", metavar="FILE", action="append", default=[], dest="devices", help=device)
    add("--tag", metavar="TAG", help="with show: the tag of the bundle, if a layout has several")
    add("--policy", metavar="FILE", help="with show: a policy that must allow it too, beside that of the machine")
    add("--root", metavar="DIR", help="with show: where it is or will be installed (default: the bundle's folder)")
    overlay = "merge a file below the manifest's folder into it; may be given several times"
    add("--overlay", metavar="FILE", action="append", default=[], dest="overlays", help=overlay)
    add("--state-dir", metavar="DIR", help="folder of the caches (default: .ortdeploy beside the manifest)")
    add("--format", choices=("text", "json"), help="form of the results (default: text; also: ORTDEPLOY_FORMAT)")
    _add_common(parser, "print only what is wrong")
    parser.set_defaults(sets=[], roots=[], labels=[], profile=None)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version, which is a whole number from 1 on")
    return int(text)


def _add_validate(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "a manifest, or a folder of them")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_validate(parser)
    device = "plan for the device that this file describes; a pattern, or given several times: show what runs where"
    parser.add_argument("--device", metavar="FILE", action="append", dest="devices", help=device)
    bound = "with --device: fix files, rows and parts, from data that is here (default: apply finds them there)"
    parser.add_argument("--bound", action="store_true", help=bound)
    parser.add_argument("--out", metavar="PLAN", help="save the plan to a file, for ortdeploy apply PLAN")
    _add_root(parser)
    _add_policy(parser)
    _add_jobs(parser)
    _add_new_run(parser)
    measure = "run the first rows of each job in a scratch folder, to learn what memory it takes"
    parser.add_argument("--measure", action="store_true", help=measure)
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 if something would run")


def _add_apply(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "manifests, folders of them, one saved plan, a bundle, or @NAME")
    shard = "run every N-th part of a saved plan, from part I on (counted from 0); auto: as the scheduler says"
    parser.add_argument("--shard", metavar="I/N", help=f"{shard} (also: ORTDEPLOY_SHARD)")
    engine = "have the workers of a Ray cluster make the parts of a saved plan; default: the cluster of this machine"
    parser.add_argument("--engine", metavar="ray[=ADDRESS]", help=engine)
    workers = "number of workers with --engine (default: one on each node or GPU, or as many as their threads fit)"
    parser.add_argument("--workers", metavar="N", type=_workers, help=workers)
    _add_root(parser)
    _add_policy(parser)
    _add_jobs(parser)
    _add_new_run(parser)
    meaning = "take the profile that holds now, even if the device has lost what the last one was chosen for"
    parser.add_argument("--choose", action="store_true", help=meaning)
    meaning = "keep the last version of a manifest that ran well, and run it while a later version is refused"
    parser.add_argument("--last-good", action="store_true", help=meaning)
    every = "how often somebody calls this command; the status document then says when it is due: 30s, 5min, 1h"
    parser.add_argument("--every", metavar="TIME", type=_time, help=every)
    _add_metrics(parser)


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    meaning = "write what the status document says as metrics into this folder, for node_exporter's textfile collector"
    parser.add_argument("--metrics", metavar="DIR", help=meaning)


def _add_finish(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "one saved plan that was run in shards")
    _add_root(parser)
    _add_jobs(parser)


def _add_retry(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "a manifest, or a folder of them")
    meaning = "the job whose failed rows run, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", required=True, help=meaning)
    meaning = "run the rows in this _failed.jsonl, which another machine wrote, and no others"
    parser.add_argument("--from", metavar="FILE", dest="letters", help=meaning)
    _add_exclude(parser)
    _add_installed_root(parser)
    _add_policy(parser, tag=False)
    parser.set_defaults(new_run=False, last_good=False)


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    meaning = "only this job, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", help=meaning)
    _add_exclude(parser)


def _add_exclude(parser: argparse.ArgumentParser) -> None:
    left_out = "leave out this job, by name or glob; may be given several times"
    parser.add_argument("--exclude", metavar="NAME", action="append", default=[], dest="excluded", help=left_out)


def _add_root(parser: argparse.ArgumentParser) -> None:
    meaning = "folder to which the paths in a saved plan are relative, or with a bundle's inputs, outputs and state"
    parser.add_argument("--root", metavar="DIR", help=f"{meaning} (default: that of the plan or bundle)")


def _add_installed_root(parser: argparse.ArgumentParser) -> None:
    meaning = "folder in which @NAME is installed (default: this one)"
    parser.add_argument("--root", metavar="DIR", help=meaning)


def _add_policy(parser: argparse.ArgumentParser, *, tag: bool = True) -> None:
    meaning = "a policy that must allow it too, beside /etc/ortdeploy/policy.yaml"
    parser.add_argument("--policy", metavar="FILE", help=meaning)
    if tag:
        parser.add_argument("--tag", metavar="TAG", help="the tag of the bundle, if a layout has several")


def _add_new_run(parser: argparse.ArgumentParser) -> None:
    meaning = "start over if a result is unfinished or made from something else; the old folder is renamed and kept"
    parser.add_argument("--new-run", action="store_true", help=meaning)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--model", metavar="NAME", help="only this model")
    parser.add_argument("--record", action="store_true", help="write the CPU provider's outputs instead of comparing")
    _add_installed_root(parser)
    _add_policy(parser, tag=False)
    leaks = "run each model many times, on its golden inputs or synthetic ones, and look for a memory leak"
    parser.add_argument("--leaks", action="store_true", help=leaks)
    parser.add_argument(
        "--runs",
        metavar="N",
        type=_runs,
        default=1000,
        help="number of runs with --leaks (default: 1000, at least 300)",
    )


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest")
    add = parser.add_argument
    add("--job", metavar="NAME", required=True, help="the job whose settings are searched")
    bound = "memory=512MiB or p99=50ms: the most that a setting may take; may be given for both"
    add("--limit", metavar="KEY=VALUE", action="append", default=[], dest="limits", type=_key_value, help=bound)
    add("--seconds", metavar="N", type=_seconds, default=3.0, help="how long each setting runs (default: 3)")
    overlay = "the overlay to write (default: overlays/MANIFEST.JOB.yaml beside the manifest)"
    add("-o", "--output", metavar="FILE", help=overlay)
    add("--report", metavar="FILE", help="write an HTML page with what was tried")


def _add_try(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--rows", metavar="N", type=_rows, default=20, help="rows of each job (default: 20)")
    _add_jobs(parser)


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, at least 1")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= _LONGEST:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, up to {_LONGEST:.0f}")


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers from 1 to {_MOST_WORKERS}")
    return int(text)


_MOST_WORKERS = 10_000


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 300:  # noqa: PLR2004  fewer runs tell nothing
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs, at least 300")
    return int(text)


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_verify(parser)
    parser.add_argument("--versions", action="store_true", help="with @NAME: show its versions too")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "two files of one kind, or a manifest that is compared with its last run")
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 if something differs")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with two reports of runs side by side")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, a folder of them, or @NAME")
    _add_jobs(parser)
    _add_installed_root(parser)


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="@NAME", help="an installed deployment")
    add("--to", metavar="N", type=_number, help="the version to go back to (default: the next older one)")
    add("--unpin", action="store_true", help="do not go back; let versions be taken again that were set aside")
    add("--state-dir", metavar="DIR", help="folder of the ledger (default: .ortdeploy in the root)")
    _add_installed_root(parser)
    _add_policy(parser, tag=False)
    _add_common(parser, "print nothing if it is done")


def _add_state(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    backup = actions.add_parser("backup", help="write the ledger into one file, also beside a live run")
    restore = actions.add_parser("restore", help="restore a copy in a folder without a ledger, if it fits the outputs")
    for one in (backup, restore):
        one.add_argument("file", metavar="FILE", help="the copy; nothing is overwritten")
        state = "folder of the ledger (default: .ortdeploy in this folder; also: ORTDEPLOY_STATE_DIR)"
        one.add_argument("--state-dir", metavar="DIR", help=state)
        one.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
        _add_common(one, "print only which outputs were not compared")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    meaning = "free copies, compiled models and notes that no job and no last good version needs; never the ledger"
    prune = actions.add_parser("prune", help=meaning)
    _add_manifests(prune, ("text", "json"), "a manifest, or a folder of them")
    _add_installed_root(prune)
    prune.add_argument("--dry-run", action="store_true", help="free nothing; say what would be freed")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "manifests, folders of them, a bundle, or @NAME")
    _add_jobs(parser)
    _add_root(parser)
    _add_policy(parser)
    every = "apply at least this often: 30s, 5min, 1h (default: 5min)"
    parser.add_argument("--every", metavar="TIME", type=_time, default=300.0, help=every)
    _add_metrics(parser)


def _add_service(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text",), "manifests, folders of them, or @NAME")
    _add_jobs(parser)
    _add_installed_root(parser)
    _add_policy(parser, tag=False)
    every = "print a timer that applies at this interval: 30s, 5min, 1h (default: a service that watches)"
    parser.add_argument("--every", metavar="TIME", type=_time, help=every)
    _add_metrics(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="write the units into a folder instead of printing them"
    )


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _time(text: str) -> float:
    """Return seconds, at least one."""
    number = text.rstrip("himns")
    unit = _SECONDS.get(text[len(number) :])
    if not (number.isascii() and number.isdecimal()) or unit is None or not 1 <= int(number) * unit <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1s to 24h, as in 30s, 5min or 1h")
    return int(number) * unit


_LONGEST = 24 * 3600.0


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="FOLDER", help="folders or globs of the status documents that devices have sent")
    expected = "device files, or folders of them: a device of these that has not reported is missing"
    add("--expect", nargs="+", metavar="FILE", default=[], help=expected)
    wanted = "the version that should run: a commit, a bundle's id or the digest of a manifest's text"
    add("--wanted", metavar="ID", type=_version, help=wanted)
    add("--older", metavar="AGE", type=_age, help="a device that has not looked for this time is late: 90min, 12h, 2d")
    add("--report", metavar="FILE", help="write an HTML page with all devices")
    add("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    _add_common(parser, "print only what is wrong")


def _version(text: str) -> str:
    wanted = text.removeprefix("sha256:")
    if len(wanted) < _SHORTEST_ID or set(wanted.lower()) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{text!r} is no commit and no digest: at least {_SHORTEST_ID} of 0-9 and a-f")
    return text


_SHORTEST_ID = 7


def _age(text: str) -> float:
    """Return seconds."""
    number = text.rstrip("dhimns")
    unit = {**_SECONDS, "d": 24 * 3600.0}.get(text[len(number) :])
    if not (number.isascii() and number.isdecimal()) or unit is None or len(number) > _MOST_DIGITS or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not an age, as in 90min, 12h or 2d")
    return int(number) * unit


_MOST_DIGITS = 6


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="a model, or the folder of a Stable Diffusion pipeline")
    parser.add_argument("-o", "--output", metavar="FILE", help="the manifest to write (default: MODEL.yaml)")
    data = "the data that the job reads: the input section fits it, and no sample rows are made up"
    parser.add_argument("--from", metavar="FILE|FOLDER", dest="data", help=data)
    _add_common(parser, "print nothing if the manifest runs")


def _add_lock(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a digest is missing or wrong"
    )


def _add_adapter(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    show = actions.add_parser("show", help="print an adapter's versions and parameters")
    fit = actions.add_parser("fit", help="say whether an adapter fits a model, and why not")
    fit.add_argument("model", metavar="MODEL.onnx", help="the model")
    for one in (show, fit):
        one.add_argument("file", metavar="FILE.onnx_adapter", help="the adapter")
        one.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    _add_common(show)
    _add_common(fit, "print only what does not fit")
    convert = actions.add_parser("convert", help="convert a PEFT folder, a safetensors file or a .npz archive")
    add = convert.add_argument
    add("source", metavar="SOURCE", help="the folder or file to convert")
    add(
        "--model",
        metavar="MODEL.onnx",
        required=True,
        help="the model that the adapter is for; it gives names, shapes and types",
    )
    add("-o", "--output", metavar="FILE", required=True, help="the .onnx_adapter to write; never overwritten")
    renaming = "replace OLD by NEW in the names of matrices; may be given several times, and applies in order"
    add("--map", metavar="OLD=NEW", action="append", default=[], type=_rename, help=renaming)
    add(
        "--alpha",
        metavar="NUMBER",
        type=float,
        help="multiply the second matrix of each pair by alpha / rank (default: alpha of the PEFT folder)",
    )
    add("--adapter-version", metavar="N", type=int, default=0, help="its own version (default: 0, none)")
    add("--model-version", metavar="N", type=int, default=0, help="version of the model (default: 0, none)")
    _add_common(convert, "do not print what was written")


def _rename(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        default="deployment",
        metavar="NAME",
        help="deployment, device, diagnostics, plan, report, status or providers/NAME (default: deployment)",
    )
    _add_common(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a rule, a provider or a step (default: list all, rules by area)"
    )
    _add_common(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    name = "the device's name (default: ORTDEPLOY_DEVICE, or the host's name)"
    parser.add_argument("--name", metavar="NAME", help=name)
    label = "a label of the device, for when: of profiles; may be given several times (also: ORTDEPLOY_LABELS)"
    parser.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], dest="labels", type=_key_value, help=label
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")
    _add_common(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    _add_common(parser, "print only the providers that do not work")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("shell", choices=shells, metavar="SHELL", help="the shell that it is for: bash, zsh or tcsh")
    _add_common(parser)


COMMANDS = {
    "adapter": ("show a LoRA adapter, compare it with a model, or convert one", _add_adapter),
    "apply": ("run a manifest's jobs, or a saved plan", _add_apply),
    "bundle": ("write a manifest with all that it names as one bundle, or show a bundle", _add_bundle),
    "cache": ("free what nothing needs in the caches of the state directory", _add_cache),
    "check": ("run models on golden inputs and compare their outputs", _add_check),
    "compact": ("join small parts into larger ones", _add_verify),
    "completion": ("print a shell completion script", _add_completion),
    "device": ("write a device file that describes this machine", _add_device),
    "diff": ("show what differs between two files, or since the last run of a manifest", _add_diff),
    "doctor": ("show what works on this machine: every provider runs a small model", _add_doctor),
    "explain": ("print the page of a rule, of a provider or of a step, or list all of them", _add_explain),
    "finish": ("put the parts that the shards of a saved plan have made into the ledger", _add_finish),
    "fleet": ("show what devices have said of themselves, and which of them need somebody", _add_fleet),
    "init": ("write a manifest for a model", _add_init),
    "lock": ("write the digests of models and adapters into a manifest, or verify them", _add_lock),
    "plan": ("show what would run, and refuse what cannot work", _add_plan),
    "retry": ("run the failed rows of a job again", _add_retry),
    "rollback": ("go back to an older version of an installed deployment", _add_rollback),
    "schema": ("print a JSON Schema", _add_schema),
    "service": ("print systemd units that watch manifests, or apply them at intervals", _add_service),
    "state": ("back up the ledger, or restore it", _add_state),
    "status": ("show the committed rows of each job, and its last run", _add_status),
    "try": ("run a few rows into a scratch folder, and show the results", _add_try),
    "tune": ("search for the fastest settings of a job, and write them as an overlay", _add_tune),
    "validate": ("check manifests without a device", _add_validate),
    "verify": ("read committed parts again, and compare them with the ledger", _add_verify),
    "watch": ("apply whenever a manifest changes or input arrives", _add_watch),
}
"""The commands by name: a line of help, and the function that adds the flags."""

GROUPS = (
    ("first steps", ("init", "try", "plan", "apply", "doctor", "explain")),
    ("every day", ("validate", "status", "retry", "watch", "check", "lock", "diff", "tune", "rollback")),
    ("many machines", ("device", "fleet", "bundle", "service", "finish")),
    ("upkeep", ("verify", "compact", "state", "cache", "adapter", "schema", "completion")),
)
"""The commands by what they are for, as the help shows them; those that are not in COMMANDS are left out."""
