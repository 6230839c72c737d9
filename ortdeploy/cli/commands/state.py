"""`ortdeploy state`: write a copy of a state folder's ledger, or restore one."""

import argparse
import os
import sys
from pathlib import Path

from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.files.names import STATE_DIR
from ortdeploy.ledger.backup import BroughtBack, back_up, bring_back
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Back up or restore the ledger, and print how many outputs the copy has. Raises OrtdeployError."""
    state = Path(os.path.abspath(arguments.state_dir or STATE_DIR))  # noqa: PTH100  keeps links
    copy = Path(arguments.file)
    is_backup = arguments.action == "backup"
    done = BroughtBack(outputs=back_up(state, copy)) if is_backup else bring_back(copy, state)
    said = (arguments.action, str(state), str(copy), done)
    if arguments.format == "json":
        sys.stdout.write(json.render_state_copy(*said))
    else:
        sys.stdout.write(text.render_state_copy(*said, quiet=arguments.quiet))
    return EXIT_OK
