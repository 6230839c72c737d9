"""Runs cases in a process of its own, so that what aborts or hangs is seen and named.

Each line on stdin is a case's number, each on stdout how it ended. Called with the kind of cases, the seed, and a folder.
"""

import io
import json
import os
import random
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from ortdeploy.events import log


def main() -> None:
    kind, seed, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.chdir(folder)

    from ortdeploy.cli import main as cli  # noqa: PLC0415
    from ortdeploy.planning import workflow  # noqa: PLC0415
    from ortdeploy.process.memory import peak_memory  # noqa: PLC0415
    from support.fuzz_cases import KINDS  # noqa: PLC0415

    planned = 0
    plan_one = workflow._plan_one  # noqa: SLF001  counts which manifests get that far

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal planned
        planned += 1
        return plan_one(*arguments, **named)

    workflow._plan_one = counted  # noqa: SLF001
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        cases = KINDS[kind](Path(folder))
    for line in sys.stdin:
        case = cases.make(random.Random(f"{seed}/{line.strip()}"))  # noqa: S311  to be repeated
        out, err, before = io.StringIO(), io.StringIO(), planned
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is this case's
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = cli.main(list(case.arguments))
            finally:
                log.send_to(None)
        answer = {
            "code": code,
            "changed": case.changed,
            "arguments": list(case.arguments),
            "said": (out.getvalue() + err.getvalue())[-4000:],
            "planned": planned > before,
            "peak": peak_memory(),
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
