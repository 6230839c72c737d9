"""Bundles for the person at the terminal, and as JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortdeploy.terminal_text import safe
from ortdeploy.views.text import count

if TYPE_CHECKING:
    from ortdeploy.bundles.description import Description
    from ortdeploy.bundles.layout import Bundle
    from ortdeploy.planning.versions.installed import Installed

_FORMAT_VERSION = 1


def render_made(description: "Description", id_: str, manifest_digest: str | None, notes: Sequence[str]) -> str:
    """Return what a new bundle is."""
    lines = [*_head(description, id_, manifest_digest), *notes]
    return safe("".join(f"{line}\n" for line in lines))


def render_shown(
    bundle: "Bundle", trust: Sequence[str], new: Collection[str] | None, needed_by: Mapping[str, Sequence[str]]
) -> str:
    """Return what a bundle is, with its files and who needs them; `new` are those that are not installed yet."""
    description = bundle.description
    lines = _head(description, bundle.id, bundle.manifest_digest)
    lines += [f"signature {name}" for name in bundle.signatures] or ["without a signature"]
    lines += trust
    lines.append("")
    width = max((len(file.name) for file in description.files), default=0)
    for file in description.files:
        who = ", ".join([*needed_by.get(file.name, ()), *([file.stands_for] if file.stands_for else [])])
        mark = "+" if new is not None and file.name in new else " "
        row = f"{mark} {file.name:<{width}}  {file.kind:<7}  {file.size:>14,}  {file.sha256[:12]}…  {who}"
        lines.append(row.rstrip())
    if new is not None:
        sizes = {file.sha256: file.size for file in description.files if file.name in new}
        lines += ["", f"+ is new against the version that runs: {sum(sizes.values()):,} bytes"]
    return safe("".join(f"{line}\n" for line in lines))


def render_versions(installed: "Installed", sizes: Mapping[str, int]) -> str:
    """Return the versions of a deployment, the newest first, and those that were refused."""
    current, lines = installed.version(installed.current), []
    running = 0 if current is None else current.number or 0
    for one in sorted(installed.versions, key=lambda version: version.number or 0, reverse=True):
        reached = installed.reached.get(str(one.id), "")
        state = "current" if one.id == installed.current else "kept" if reached == "current" else reached
        aside = ", set aside" if running < (one.number or 0) <= installed.aside else ""
        label = f" ({one.label})" if one.label else ""
        kept = f"{sizes[str(one.id)]:,} bytes, since {one.kept}, id {str(one.id)[:12]}…"
        lines.append(f"{installed.name} {one.number}{label}: {state}{aside}, {kept}")
    for refused in installed.refused:
        why = f"not {refused.state} since {refused.since}: {refused.reason}"
        lines.append(f"{installed.name} {refused.called}: {why}")
    return safe("".join(f"{line}\n" for line in lines))


def render_json(
    description: "Description", id_: str, manifest_digest: str | None, signatures: Collection[str] = (), **more: Any
) -> str:
    """Return a bundle as JSON."""
    document = {
        "format_version": _FORMAT_VERSION,
        "id": id_,
        "manifest_digest": manifest_digest,
        "deployment": msgspec.to_builtins(description),
        "signatures": sorted(signatures),
        **more,
    }
    return json.dumps(document, indent=2) + "\n"


def _head(description: "Description", id_: str, manifest_digest: str | None) -> list[str]:
    label = f" ({description.label})" if description.label else ""
    size = sum({file.sha256: file.size for file in description.files}.values())
    files = f"{count(len(description.files), 'file')}, {size:,} bytes"
    lines = [f"{description.name} {description.version}{label}: {files}", f"id {id_}"]
    if manifest_digest is not None:
        lines.append(f"manifest sha256:{manifest_digest.removeprefix('sha256:')}")
    if description.needs.allow_code:
        lines.append("brings libraries, which a policy must allow (allow_code)")
    return lines
