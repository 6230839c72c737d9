"""How a child process tells its parent that it ended early."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortdeploy.cli.os_errors import fault_of_the_machine
from ortdeploy.diagnostics import OrtdeployError

if TYPE_CHECKING:
    from ortdeploy.process.child import Say


@contextmanager
def told_to_the_parent(say: "Say", kind: str) -> Iterator[None]:
    """Tell the parent what ends the block: an error of this `kind`, or a bug. An interrupt is not told."""
    try:
        yield
    except OrtdeployError as error:
        say(kind=kind, reason=str(error))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001  the parent reports it as the bug that it is
        reason = fault_of_the_machine(error)
        if reason is None:
            import traceback  # noqa: PLC0415  only when something is wrong

            say(kind="bug", reason="".join(traceback.format_exception(error)))
        else:
            say(kind=kind, reason=reason)
