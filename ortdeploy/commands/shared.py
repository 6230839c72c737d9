"""What several commands do alike: read the options about manifests, print diagnostics in the chosen form."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.manifest.loader import LoadOptions


def load_options(arguments: argparse.Namespace) -> LoadOptions:
    """Return what the command line says about every manifest."""
    return LoadOptions(profile=arguments.profile, sets=tuple(arguments.sets), roots=tuple(arguments.roots))


def use_color(arguments: argparse.Namespace) -> bool:
    """Whether stdout gets colors."""
    return wants_color(sys.stdout, forbidden=arguments.no_color)


def wants_color(stream: TextIO, *, forbidden: bool) -> bool:
    """Whether to color: on a terminal that is not dumb, unless --no-color or NO_COLOR says otherwise."""
    if forbidden or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and sys.platform != "win32"


def write_diagnostics(diagnostics: Sequence[Diagnostic], arguments: argparse.Namespace) -> None:
    """Print diagnostics as text, as GitHub annotations or as SARIF."""
    if arguments.format == "github":
        from ortdeploy.views import github  # noqa: PLC0415  only who asks for it

        sys.stdout.write(github.render_diagnostics(diagnostics))
    elif arguments.format == "sarif":
        from ortdeploy.commands.explain import page_of  # noqa: PLC0415  only who asks for it
        from ortdeploy.version import package_version  # noqa: PLC0415
        from ortdeploy.views import sarif  # noqa: PLC0415

        version = package_version("ortdeploy")
        sys.stdout.write(sarif.render_diagnostics(diagnostics, lambda rule: page_of(rule) or rule, version))
    else:
        from ortdeploy.views import text  # noqa: PLC0415

        sys.stdout.write(text.render_diagnostics(diagnostics, color=use_color(arguments)))
