"""What the program asks of libraries through the environment, before they are loaded."""

import os

_ASKED = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own allocator keeps what was freed
    "OPENBLAS_NUM_THREADS": "1",  # numpy's; its threads spin for 0.1 s when they start, for no work
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime's, from 1.29 on; it reads this once, when it is loaded
}

_own: set[str] = set()


def set_up_libraries() -> None:
    """Set the variables that the user has not set."""
    _set(*_ASKED)


def switch_off_telemetry() -> None:
    """Keep ONNX Runtime from sending events to Microsoft, also where the program is a library of another one."""
    _set("ORT_DISABLE_TELEMETRY")


def _set(*names: str) -> None:
    for name in names:
        if name not in os.environ:
            os.environ[name] = _ASKED[name]
            _own.add(name)


def users_environment() -> dict[str, str]:
    """Return the environment without what `set_up_libraries` has set, for programs that are not part of this one."""
    return {name: value for name, value in os.environ.items() if name not in _own}
