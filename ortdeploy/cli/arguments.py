"""The command line: every command with its flags. `commands/` does what they mean."""

import argparse
import os

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

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

COMMANDS = {
    "adapter": "show a LoRA adapter, compare it with a model, or convert one",
    "apply": "run a manifest's jobs, or a saved plan",
    "check": "run models on golden inputs and compare their outputs",
    "completion": "print a shell completion script",
    "device": "write a device file that describes this machine",
    "diff": "show what differs between two files, or since the last run of a manifest",
    "explain": "print the page of a rule or of a provider",
    "init": "write a manifest for a model, or for a folder of models",
    "lock": "write the digests of models and adapters into a manifest, or verify them",
    "plan": "show what would run, and refuse what cannot work",
    "retry": "run the failed rows of a job again",
    "schema": "print a JSON Schema",
    "status": "show the committed rows of each job, and its last run",
    "try": "run a few rows into a scratch folder, and show the results",
    "tune": "search the fastest settings for a job, and write them as an overlay",
    "validate": "check manifests without a device",
    "verify": "read committed parts again, and compare them with the ledger",
    "watch": "apply whenever a manifest changes or input arrives",
}


class _Once(argparse.Action):
    """Stores a flag's value; a flag that takes one value and is given twice would silently lose the first."""

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
    "state_dir": ("ORTDEPLOY_STATE_DIR", None),
}
"""The environment variables that stand for flags which are not given, and what holds without either."""


class _Parser(argparse.ArgumentParser):
    """Wrong usage exits with 64, so that it can never look like a rejection or like changes.

    Flags are never abbreviated, and what a command does not know is told by that command.
    """

    def __init__(self, *arguments: "Any", **settings: "Any") -> None:
        settings["allow_abbrev"] = False
        super().__init__(*arguments, **settings)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> "NoReturn":
        from ortdeploy.diagnostics import UsageError  # noqa: PLC0415  only when something is wrong

        raise UsageError(f"{message}\n{self.format_usage().strip()}")

    def parse_known_args(  # type: ignore[override]  # of the two ways to call it, ours
        self, args: "Sequence[str] | None" = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        known.__dict__.pop(_GIVEN, None)
        for action in self._actions:
            if action.dest in _VARIABLES and getattr(known, action.dest) is None:
                setattr(known, action.dest, self._from_variable(action))
        return known, unknown

    def _from_variable(self, action: argparse.Action) -> str | None:
        """Return what an environment variable says in place of a flag that is not given, or the default."""
        variable, default = _VARIABLES[action.dest]
        value = os.environ.get(variable) or default
        if action.choices is not None and value is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            self.error(f'{variable} is "{value}", and {self.prog} takes {choices}. Change it, or give the flag')
        return value

    def _unknown(self, text: str) -> str:
        if not text.startswith("-"):
            return f'"{text}" is one argument too many'
        from ortdeploy.diagnostics import did_you_mean  # noqa: PLC0415  only when something is wrong

        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        return f"{self.prog} has no flag {text.partition('=')[0]}. {did_you_mean(text.partition('=')[0], flags)}"


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of every command; with the flags of one command `only`, which is faster."""

    class Version(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            from ortdeploy.versions import package_version  # noqa: PLC0415  reading metadata takes as long as the rest

            print(f"ortdeploy {package_version('ortdeploy')}")  # noqa: T201  the front door's own word
            parser.exit()

    parser = _Parser(
        prog="ortdeploy",
        description="Declarative deployments for ONNX Runtime.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        if only in {None, name}:
            _ADD[name](command)
    return parser


_DIAGNOSTICS = ("text", "json", "github", "sarif")


def _add_manifests(parser: argparse.ArgumentParser, formats: "Sequence[str]", paths: str) -> None:
    """Add what every command that reads manifests takes."""
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help=paths)
    add("--format", choices=formats, help="form of the results (default: text; also: ORTDEPLOY_FORMAT)")
    add("--profile", metavar="NAME", help="merge the overrides under profiles: NAME: into the manifest")
    overlay = "merge a file into the manifest, such as one that ortdeploy tune wrote; may be given several times"
    add("--overlay", metavar="FILE", action="append", default=[], dest="overlays", help=overlay)
    setting = "replace one value, as in --set jobs.read.batch.size=16; may be given several times"
    add("--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", type=_key_value, help=setting)
    root = "allow paths into this folder; may be given several times"
    add("--allow-root", metavar="DIR", action="append", default=[], dest="roots", help=root)
    state = "folder of the ledger and the caches (default: .ortdeploy beside the manifest; also: ORTDEPLOY_STATE_DIR)"
    add("--state-dir", metavar="DIR", help=state)
    form = "form of the log (default: console on a terminal, json elsewhere; also: ORTDEPLOY_LOG_FORMAT)"
    add("--log-format", choices=("console", "json"), help=form)
    add("--log-file", metavar="FILE", help="append logs to a file instead of stderr")
    add("-q", "--quiet", action="store_true", help="print only what is wrong")
    add("-v", "--verbose", action="store_true", help="log more details")
    color = "whether to color (default: auto, on a terminal; also: ORTDEPLOY_COLOR, NO_COLOR, FORCE_COLOR)"
    add("--color", choices=("auto", "always", "never"), help=color)
    add("--no-color", action="store_const", const="never", dest="color", help="the same as --color never")


def _key_value(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def _add_validate(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "a manifest, or a folder of them")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_validate(parser)
    parser.add_argument("--device", metavar="FILE", help="plan for the machine that a device file describes")
    parser.add_argument("--out", metavar="PLAN", help="save the plan to a file, for ortdeploy apply PLAN")
    _add_root(parser)
    _add_jobs(parser)
    _add_new_run(parser)
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 if something would run")


def _add_apply(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "manifests, folders of them, or one saved plan")
    _add_root(parser)
    _add_jobs(parser)
    _add_new_run(parser)


def _add_retry(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, _DIAGNOSTICS, "a manifest, or a folder of them")
    meaning = "run the failed rows of this job, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", required=True, help=meaning)
    parser.set_defaults(new_run=False, excluded=[])


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    meaning = "only this job, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", help=meaning)
    left_out = "leave out this job, by name or glob; may be given several times"
    parser.add_argument("--exclude", metavar="NAME", action="append", default=[], dest="excluded", help=left_out)


def _add_root(parser: argparse.ArgumentParser) -> None:
    meaning = "folder to which the paths in a saved plan are relative (default: the plan's folder)"
    parser.add_argument("--root", metavar="DIR", help=meaning)


def _add_new_run(parser: argparse.ArgumentParser) -> None:
    meaning = "start over if a result is unfinished or made from something else; the old folder is renamed and kept"
    parser.add_argument("--new-run", action="store_true", help=meaning)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--model", metavar="NAME", help="only this model")
    parser.add_argument("--record", action="store_true", help="write the CPU provider's outputs instead of comparing")
    leaks = "run each model many times, on its golden inputs or synthetic ones, and look for a memory leak"
    parser.add_argument("--leaks", action="store_true", help=leaks)
    parser.add_argument(
        "--runs", metavar="N", type=_runs, default=1000, help="number of runs with --leaks (default: 1000)"
    )


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest")
    add = parser.add_argument
    add("--job", metavar="NAME", required=True, help="the job whose settings are searched")
    bound = "memory=512MiB or p99=50ms: the most that a setting may take; may be given for both"
    add("--limit", metavar="KEY=VALUE", action="append", default=[], dest="limits", type=_key_value, help=bound)
    add("--seconds", metavar="N", type=float, default=3.0, help="how long each setting runs (default: 3)")
    add("-o", "--output", metavar="FILE", help="the overlay to write (default: overlays/MANIFEST.JOB.yaml beside it)")
    add("--report", metavar="FILE", help="write an HTML page with what was tried")


def _add_try(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--rows", metavar="N", type=_rows, default=20, help="rows of each job (default: 20)")
    _add_jobs(parser)


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, at least 1")
    return int(text)


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 300:  # noqa: PLR2004  fewer runs tell nothing
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs, at least 300")
    return int(text)


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "two files of one kind, or a manifest, to compare it with its last run")
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 when something differs")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_status(parser)
    _add_jobs(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "manifests, or folders of them")
    _add_jobs(parser)
    every = "apply after so long too, although nothing was seen to change: 30s, 5min, 1h (default: 5min)"
    parser.add_argument("--every", metavar="TIME", type=_time, default=300.0, help=every)


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _time(text: str) -> float:
    """Return seconds, at least one."""
    number = text.rstrip("himns")
    unit = _SECONDS.get(text[len(number) :])
    if not (number.isascii() and number.isdecimal()) or unit is None or not 1 <= int(number) * unit <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1s to 24h, as in 30s, 5min or 1h")
    return int(number) * unit


_LONGEST = 24 * 3600.0


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="a model, or the folder of a Stable Diffusion pipeline")
    parser.add_argument("-o", "--output", metavar="FILE", help="the manifest to write (default: MODEL.yaml)")
    data = "the data that the job reads: the input section is made to fit, and no sample is made up"
    parser.add_argument("--from", metavar="FILE|FOLDER", dest="data", help=data)


def _add_lock(parser: argparse.ArgumentParser) -> None:
    _add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a digest is missing or wrong"
    )


def _add_adapter(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    show = actions.add_parser("show", help="print an adapter's versions and parameters")
    fit = actions.add_parser("fit", help="say whether an adapter fits a model, and why not")
    fit.add_argument("model", metavar="MODEL.onnx")
    for one in (show, fit):
        one.add_argument("file", metavar="FILE.onnx_adapter")
        one.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
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
    add("--adapter-version", metavar="N", type=int, default=0, help="default: 0, none")
    add("--model-version", metavar="N", type=int, default=0, help="default: 0, none")


def _rename(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", default="deployment", metavar="NAME", help="which schema (default: deployment)"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="RULE|PROVIDER", help="a rule or a provider (default: list all, rules by area)"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="the device's name (default: the host's)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


_ADD = {
    "adapter": _add_adapter,
    "apply": _add_apply,
    "check": _add_check,
    "completion": _add_completion,
    "device": _add_device,
    "diff": _add_diff,
    "explain": _add_explain,
    "init": _add_init,
    "lock": _add_lock,
    "plan": _add_plan,
    "retry": _add_retry,
    "schema": _add_schema,
    "status": _add_status,
    "try": _add_try,
    "tune": _add_tune,
    "validate": _add_validate,
    "verify": _add_verify,
    "watch": _add_watch,
}
