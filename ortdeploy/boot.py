"""What tells one start of the machine from another."""

from contextlib import suppress
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this start of the machine; nothing where the system does not say."""
    with suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return ""
