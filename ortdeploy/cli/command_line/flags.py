"""Flags that several commands have."""

import argparse

from ortdeploy.cli.command_line.values import key_value

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Sequence


DIAGNOSTICS = ("text", "json", "github", "sarif")


def add_manifests(parser: argparse.ArgumentParser, formats: "Sequence[str]", paths: str) -> None:
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
    add("--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", type=key_value, help=setting)
    label = "a label of this device, for when: of profiles; may be given several times (also: ORTDEPLOY_LABELS)"
    add("--label", metavar="KEY=VALUE", action="append", default=[], dest="labels", type=key_value, help=label)
    root = "allow paths into this folder; may be given several times"
    add("--allow-root", metavar="DIR", action="append", default=[], dest="roots", help=root)
    state = "folder of the ledger and the caches (default: .ortdeploy beside the manifest; also: ORTDEPLOY_STATE_DIR)"
    add("--state-dir", metavar="DIR", help=state)
    form = "form of the log (default: console on a terminal, json elsewhere; also: ORTDEPLOY_LOG_FORMAT)"
    add("--log-format", choices=("console", "json"), help=form)
    add("--log-file", metavar="FILE", help="append logs to a file instead of stderr")
    add_common(parser, "print only what is wrong")
    add("-v", "--verbose", action="store_true", help="log more details")


_AS_ASKED = "print only what is wrong, besides what was asked for"
"""What -q means for commands whose output is what somebody asks for, such as a page or a script."""


def add_common(parser: argparse.ArgumentParser, quiet: str = _AS_ASKED) -> None:
    """Add the flags of every command."""
    add = parser.add_argument
    add("-q", "--quiet", action="store_true", help=quiet)
    color = "whether to use colors (default: auto, on a terminal; also: ORTDEPLOY_COLOR, NO_COLOR, FORCE_COLOR)"
    add("--color", choices=("auto", "always", "never"), help=color)
    add("--no-color", action="store_const", const="never", dest="color", help="the same as --color never")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add where metrics are written."""
    meaning = "write what the status document says as metrics into this folder, for node_exporter's textfile collector"
    parser.add_argument("--metrics", metavar="DIR", help=meaning)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add which jobs are meant."""
    meaning = "only this job, by name or glob; may be given several times"
    parser.add_argument("--job", metavar="NAME", action="append", dest="jobs", help=meaning)
    add_exclude(parser)


def add_exclude(parser: argparse.ArgumentParser) -> None:
    """Add which jobs are left out."""
    left_out = "leave out this job, by name or glob; may be given several times"
    parser.add_argument("--exclude", metavar="NAME", action="append", default=[], dest="excluded", help=left_out)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the folder that paths of a saved plan or bundle are relative to."""
    meaning = "folder to which the paths in a saved plan are relative, or with a bundle's inputs, outputs and state"
    parser.add_argument("--root", metavar="DIR", help=f"{meaning} (default: that of the plan or bundle)")


def add_installed_root(parser: argparse.ArgumentParser) -> None:
    """Add the folder in which deployments are installed."""
    meaning = "folder in which @NAME is installed (default: this one)"
    parser.add_argument("--root", metavar="DIR", help=meaning)


def add_policy(parser: argparse.ArgumentParser, *, tag: bool = True) -> None:
    """Add the policy that must allow a bundle; `tag`: and the name that it must have."""
    meaning = "a policy that must allow it too, beside /etc/ortdeploy/policy.yaml"
    parser.add_argument("--policy", metavar="FILE", help=meaning)
    if tag:
        parser.add_argument("--tag", metavar="TAG", help="the tag of the bundle, if a layout has several")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add where a plan or a bundle runs, which of its jobs, and that unfinished results start over."""
    add_root(parser)
    add_policy(parser)
    add_jobs(parser)
    meaning = "start over if a result is unfinished or made from something else; the old folder is renamed and kept"
    parser.add_argument("--new-run", action="store_true", help=meaning)
