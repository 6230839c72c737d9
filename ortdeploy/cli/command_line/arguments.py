"""The command line: every command with its flags. `commands/` has what each command does."""

import argparse

from ortdeploy.cli.command_line.flags import (
    DIAGNOSTICS,
    add_common,
    add_exclude,
    add_installed_root,
    add_jobs,
    add_manifests,
    add_metrics,
    add_policy,
    add_root,
    add_run,
)
from ortdeploy.cli.command_line.parser import Parser, columns, wrapped
from ortdeploy.cli.command_line.values import (
    age,
    interval,
    key_value,
    renaming_pair,
    row_count,
    run_count,
    seconds,
    version_id,
    version_number,
    worker_count,
)

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CODES = (
    ("0", "done; also if there is nothing to do, or failures stay within errors:"),
    ("1", "a manifest was rejected, or a job failed"),
    ("2", "something would run or differs; only with --detailed-exitcode"),
    ("3", "a bug of ortdeploy"),
    ("4", "another run is using the state directory"),
    ("5", "paused by hours:, until: or pause:; there is more to do"),
    ("64", "wrong usage"),
    ("129/130/143", "interrupted (SIGHUP, SIGINT, SIGTERM); the next apply continues"),
)


class _Program(Parser):
    """The parser of the program itself, whose help shows the commands by what they are for."""

    def format_help(self) -> str:
        width = columns()
        tables = {group: [(one, COMMANDS[one][0]) for one in names if one in COMMANDS] for group, names in GROUPS}
        tables["options"] = [(", ".join(one.option_strings), str(one.help)) for one in self._actions[:2]]
        indent = 4 + max(len(name) for rows in tables.values() for name, _ in rows)
        shown = [f"{group}:\n{_table(rows, indent, width)}" for group, rows in tables.items()]
        shown.append(f"exit codes:\n{_table(EXIT_CODES, 15, width)}")
        about = "\n".join([*wrapped(str(self.description), width), f"Start with: {_FIRST}"])
        more = [
            *wrapped("ortdeploy COMMAND --help shows the flags of a command.", width),
            f"Documents: {_DOCUMENTS}",
        ]
        return "\n\n".join([self.format_usage().rstrip(), about, *shown, "\n".join(more)]) + "\n"


_FIRST = "ortdeploy init MODEL.onnx"
_DOCUMENTS = "https://github.com/OWNER/ortdeploy/tree/main/docs"


def _table(rows: "Sequence[tuple[str, str]]", indent: int, width: int) -> str:
    """Return rows of a name and what it means, which begins `indent` columns from the left."""
    lines = []
    for name, meaning in rows:
        first, *others = wrapped(meaning, width - indent)
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
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS if only is None else [only]:
        help_text, add_flags = COMMANDS[name]
        add_flags(commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."))
    return parser


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a manifest; or the word show, and a bundle")
    add("-o", "--output", metavar="FILE", help="the bundle to write: FILE.tar, or the name of a new folder")
    add("--files", metavar="DIR", help="write the files of the bundle into a new folder, for a tool that signs it")
    signature = "add a signature of what --files has written; may be given several times"
    add("--signature", metavar="FILE", action="append", default=[], dest="signatures", help=signature)
    number = "number of the version; devices take higher ones alone (default: 1)"
    add("--version", metavar="N", type=version_number, default=1, dest="number", help=number)
    add("--label", metavar="TEXT", help="a name of the version for people, such as a commit")
    add("--against", metavar="OLD", help="compare with an older bundle, and say what devices will refuse")
    device = "refuse what the machine of a device file, or of those of a pattern, would refuse; several times: of each"
    add("--device", metavar="FILE", action="append", default=[], dest="devices", help=device)
    add("--tag", metavar="TAG", help="with show: the tag of the bundle, if a layout has several")
    add("--policy", metavar="FILE", help="with show: a policy that must allow it too, beside that of the machine")
    add("--root", metavar="DIR", help="with show: where it is or will be installed (default: the bundle's folder)")
    overlay = "merge a file below the manifest's folder into it; may be given several times"
    add("--overlay", metavar="FILE", action="append", default=[], dest="overlays", help=overlay)
    add("--state-dir", metavar="DIR", help="folder of the caches (default: .ortdeploy beside the manifest)")
    add("--format", choices=("text", "json"), help="form of the results (default: text; also: ORTDEPLOY_FORMAT)")
    add_common(parser, "print only what is wrong")
    parser.set_defaults(sets=[], roots=[], labels=[], profile=None)


def _add_validate(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, DIAGNOSTICS, "a manifest, or a folder of them")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_validate(parser)
    device = "plan for the device that this file describes; a pattern, or given several times: show what runs where"
    parser.add_argument("--device", metavar="FILE", action="append", dest="devices", help=device)
    bound = "with --device: fix files, rows and parts, from data that is here (default: apply finds them there)"
    parser.add_argument("--bound", action="store_true", help=bound)
    parser.add_argument("--out", metavar="PLAN", help="save the plan to a file, for ortdeploy apply PLAN")
    add_run(parser)
    measure = "run the first rows of each job in a scratch folder, to learn what memory it takes"
    parser.add_argument("--measure", action="store_true", help=measure)
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 if something would run")


def _add_apply(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, DIAGNOSTICS, "manifests, folders of them, one saved plan, a bundle, or @NAME")
    shard = "run every N-th part of a saved plan, from part I on (counted from 0); auto: as the scheduler says"
    parser.add_argument("--shard", metavar="I/N", help=f"{shard} (also: ORTDEPLOY_SHARD)")
    engine = "have the workers of a Ray cluster make the parts of a saved plan; default: the cluster of this machine"
    parser.add_argument("--engine", metavar="ray[=ADDRESS]", help=engine)
    workers = "number of workers with --engine (default: one on each node or GPU, or as many as their threads fit)"
    parser.add_argument("--workers", metavar="N", type=worker_count, help=workers)
    add_run(parser)
    meaning = "take the profile that holds now, even if the device has lost what the last one was chosen for"
    parser.add_argument("--choose", action="store_true", help=meaning)
    meaning = "keep the last version of a manifest that ran well, and run it while a later version is refused"
    parser.add_argument("--last-good", action="store_true", help=meaning)
    every = "how often somebody calls this command; the status document then says when it is due: 30s, 5min, 1h"
    parser.add_argument("--every", metavar="TIME", type=interval, help=every)
    add_metrics(parser)


def _add_finish(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, DIAGNOSTICS, "one saved plan that was run in shards")
    add_root(parser)
    add_jobs(parser)


def _add_retry(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, DIAGNOSTICS, "a manifest, or a folder of them")
    meaning = "the job whose failed rows run, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", required=True, help=meaning)
    meaning = "run the rows in this _failed.jsonl, which another machine wrote, and no others"
    parser.add_argument("--from", metavar="FILE", dest="letters", help=meaning)
    add_exclude(parser)
    add_installed_root(parser)
    add_policy(parser, tag=False)
    parser.set_defaults(new_run=False, last_good=False)


def _add_check(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--model", metavar="NAME", help="only this model")
    parser.add_argument("--record", action="store_true", help="write the CPU provider's outputs instead of comparing")
    add_installed_root(parser)
    add_policy(parser, tag=False)
    leaks = "run each model many times, on its golden inputs or synthetic ones, and look for a memory leak"
    parser.add_argument("--leaks", action="store_true", help=leaks)
    parser.add_argument(
        "--runs",
        metavar="N",
        type=run_count,
        default=1000,
        help="number of runs with --leaks (default: 1000, at least 300)",
    )


def _add_tune(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "a manifest")
    add = parser.add_argument
    add("--job", metavar="NAME", required=True, help="the job whose settings are searched")
    bound = "memory=512MiB or p99=50ms: the most that a setting may take; may be given for both"
    add("--limit", metavar="KEY=VALUE", action="append", default=[], dest="limits", type=key_value, help=bound)
    add("--seconds", metavar="N", type=seconds, default=3.0, help="how long each setting runs (default: 3)")
    overlay = "the overlay to write (default: overlays/MANIFEST.JOB.yaml beside the manifest)"
    add("-o", "--output", metavar="FILE", help=overlay)
    add("--report", metavar="FILE", help="write an HTML page with what was tried")


def _add_try(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument("--rows", metavar="N", type=row_count, default=20, help="rows of each job (default: 20)")
    add_jobs(parser)


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_verify(parser)
    parser.add_argument("--versions", action="store_true", help="with @NAME: show its versions too")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "two files of one kind, or a manifest that is compared with its last run")
    parser.add_argument("--detailed-exitcode", action="store_true", help="exit with 2 if something differs")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with two reports of runs side by side")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "a manifest, a folder of them, or @NAME")
    add_jobs(parser)
    add_installed_root(parser)


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text",), "an installed deployment, as @NAME")
    add = parser.add_argument
    add("--to", metavar="N", type=version_number, help="the version to go back to (default: the next older one)")
    add("--force", action="store_true", help="go back even to a version that would be refused here as it is now")
    add("--unpin", action="store_true", help="do not go back; let versions be taken again that were set aside")
    add_installed_root(parser)
    add_policy(parser, tag=False)
    parser.set_defaults(new_run=False)


def _add_state(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    backup = actions.add_parser("backup", help="write the ledger into one file, also beside a live run")
    restore = actions.add_parser("restore", help="restore a copy in a folder without a ledger, if it fits the outputs")
    for one in (backup, restore):
        one.add_argument("file", metavar="FILE", help="the copy; nothing is overwritten")
        state = "folder of the ledger (default: .ortdeploy in this folder; also: ORTDEPLOY_STATE_DIR)"
        one.add_argument("--state-dir", metavar="DIR", help=state)
        one.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
        add_common(one, "print only which outputs were not compared")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    meaning = "free copies, compiled models and notes that no job and no last good version needs; never the ledger"
    prune = actions.add_parser("prune", help=meaning)
    add_manifests(prune, ("text", "json"), "a manifest, or a folder of them")
    add_installed_root(prune)
    prune.add_argument("--dry-run", action="store_true", help="free nothing; say what would be freed")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "manifests, folders of them, a bundle, or @NAME")
    add_jobs(parser)
    add_root(parser)
    add_policy(parser)
    every = "apply at least this often: 30s, 5min, 1h (default: 5min)"
    parser.add_argument("--every", metavar="TIME", type=interval, default=300.0, help=every)
    add_metrics(parser)


def _add_service(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text",), "manifests, folders of them, a bundle, or @NAME")
    add_jobs(parser)
    add_installed_root(parser)
    add_policy(parser)
    every = "print a timer that applies at this interval: 30s, 5min, 1h (default: a service that watches)"
    parser.add_argument("--every", metavar="TIME", type=interval, help=every)
    add_metrics(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="write the units into a folder instead of printing them"
    )


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="FOLDER", help="folders or globs of the status documents that devices have sent")
    expected = "device files, or folders of them: a device of these that has not reported is missing"
    add("--expect", nargs="+", metavar="FILE", default=[], help=expected)
    wanted = "the version that should run: a commit, a bundle's id or the digest of a manifest's text"
    add("--wanted", metavar="ID", type=version_id, help=wanted)
    add("--older", metavar="AGE", type=age, help="a device that has not looked for this time is late: 90min, 12h, 2d")
    add("--report", metavar="FILE", help="write an HTML page with all devices")
    add("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    add_common(parser, "print only what is wrong")


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="a model, or the folder of a Stable Diffusion pipeline")
    parser.add_argument("-o", "--output", metavar="FILE", help="the manifest to write (default: MODEL.yaml)")
    data = "the data that the job reads: the input section fits it, and no sample rows are made up"
    parser.add_argument("--from", metavar="FILE|FOLDER", dest="data", help=data)
    add_common(parser, "print nothing if the manifest runs")


def _add_lock(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, ("text", "json"), "a manifest, or a folder of them")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a digest is missing or wrong"
    )


def _add_adapter(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    show = actions.add_parser("show", help="print an adapter's versions and parameters")
    fit = actions.add_parser("fit", help="say whether an adapter fits a model, and why not")
    fit.add_argument("model", metavar="MODEL.onnx", help="the model")
    for one in (show, fit):
        one.add_argument("file", metavar="FILE.onnx_adapter", help="the adapter")
        one.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    add_common(show)
    add_common(fit, "print only what does not fit")
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
    add("--map", metavar="OLD=NEW", action="append", default=[], type=renaming_pair, help=renaming)
    add(
        "--alpha",
        metavar="NUMBER",
        type=float,
        help="multiply the second matrix of each pair by alpha / rank (default: alpha of the PEFT folder)",
    )
    add("--adapter-version", metavar="N", type=int, default=0, help="its own version (default: 0, none)")
    add("--model-version", metavar="N", type=int, default=0, help="version of the model (default: 0, none)")
    add_common(convert, "do not print what was written")


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        default="deployment",
        metavar="NAME",
        help="deployment, device, diagnostics, plan, report, status or providers/NAME (default: deployment)",
    )
    add_common(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a rule, a provider or a step (default: list all, rules by area)"
    )
    add_common(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    name = "the device's name (default: ORTDEPLOY_DEVICE, or the host's name)"
    parser.add_argument("--name", metavar="NAME", help=name)
    label = "a label of the device, for when: of profiles; may be given several times (also: ORTDEPLOY_LABELS)"
    parser.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], dest="labels", type=key_value, help=label
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")
    add_common(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), help="default: text (also: ORTDEPLOY_FORMAT)")
    add_common(parser, "print only the providers that do not work")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("shell", choices=shells, metavar="SHELL", help="the shell that it is for: bash, zsh or tcsh")
    add_common(parser)


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
