"""What `ortdeploy watch` takes while nothing arrives: its share of a core, and its resident memory.

The first apply is over when it is measured. Linux: the figures are those of /proc.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cold_start import ARRIVING, MAKE, ROWS

SECONDS = 60
SETTLED = 20


def usage(process: int) -> tuple[float, int]:
    """Return the processor seconds that a process and its ended children have taken, and its resident bytes."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = sum(int(fields[place]) for place in (11, 12, 13, 14))  # user, system, and those of children
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Start a watch, let it apply once, and measure a minute in which nothing arrives."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-c", MAKE, str(Path(__file__).parent), str(ROWS)], cwd=folder, check=True)
        (folder / "inbox").mkdir()
        (folder / "rows.npy").rename(folder / "inbox/rows.npy")
        (folder / "m.yaml").write_text(ARRIVING, encoding="utf-8")
        command = [sys.executable, "-m", "ortdeploy", "watch", "m.yaml", "--every", "1h", "-q"]
        with subprocess.Popen(command, cwd=folder) as process:
            time.sleep(SETTLED)
            before, _ = usage(process.pid)
            time.sleep(SECONDS)
            after, resident = usage(process.pid)
            process.send_signal(signal.SIGTERM)
        print(f"{(after - before) / SECONDS:.3%} of a core, {resident / 2**20:.0f} MiB resident")


if __name__ == "__main__":
    main()
