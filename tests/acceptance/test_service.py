"""`ortdeploy service`: units that systemd takes, hardened by what manifests need."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Cli

from ortdeploy.cli.command_line.arguments import build_parser

MANIFEST = """
version: 1
name: {name}
models: {{m: {{path: models/m.onnx, providers: [{providers}]}}}}
jobs:
  run:
    model: m
    input: {{path: {input}, on_empty: done}}
    output: {{path: outbox/run}}
    errors: {{run_timeout: {timeout}}}
"""


@pytest.fixture
def units(tmp_path: Path, cli: Cli) -> "Units":
    return Units(tmp_path, cli)


class Units:
    """Writes a manifest and returns the lines of the units that are printed for it."""

    def __init__(self, folder: Path, cli: Cli) -> None:
        self.folder, self.cli = folder, cli

    def __call__(self, *flags: str, folder: str = "d", file: str = "m.yaml", **settings: str) -> list[str]:
        chosen = {"name": "demo", "providers": "CPU", "input": "inbox/*.npy", "timeout": "30s"} | settings
        (self.folder / folder).mkdir(exist_ok=True)
        text = MANIFEST.format(**chosen).replace("name: \n", "")
        (self.folder / folder / file).write_text(text)
        printed = self.cli("service", self.folder / folder / file, *flags)
        assert printed.code == 0, printed.err
        return printed.out.splitlines()


def test_without_a_time_it_watches_and_with_one_a_timer_applies(units: Units) -> None:
    watching = units()
    assert "Type=notify" in watching
    assert "WantedBy=multi-user.target" in watching
    assert not any("[Timer]" in line for line in watching)
    command = next(line for line in watching if line.startswith("ExecStart="))
    assert command.endswith(f"watch -- {units.folder}/d/m.yaml")
    applying = units("--every", "5min")
    assert {"Type=oneshot", "OnUnitInactiveSec=300", "WantedBy=timers.target"} <= set(applying)
    assert "WatchdogSec=300" not in applying
    command = next(line for line in applying if line.startswith("ExecStart="))
    assert command.endswith(f"apply --last-good --every=300s -- {units.folder}/d/m.yaml")
    for lines in (watching, applying):
        assert {"SuccessExitStatus=5", "ProtectSystem=strict", f"ReadWritePaths={units.folder}/d"} <= set(lines)
        assert "After=remote-fs.target time-sync.target" in lines


def test_flags_are_handed_on_with_full_paths(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    units()
    monkeypatch.chdir(units.folder)
    (units.folder / "o.yaml").write_text("{}\n")
    given = ["--overlay", "o.yaml", "--set", "name=x", "--state-dir", "state", "--job", "r*", "-q", "--log-file", "l"]
    lines = units(*given)
    command = next(line for line in lines if line.startswith("ExecStart=")).partition(" watch ")[2].split()
    parsed = build_parser("watch").parse_args(["watch", *command])
    assert (parsed.overlays, parsed.state_dir) == ([f"{units.folder}/o.yaml"], f"{units.folder}/state")
    assert (parsed.sets, parsed.jobs, parsed.quiet, parsed.log_file) == (["name=x"], ["r*"], True, f"{units.folder}/l")
    assert f"ReadWritePaths={units.folder}" in lines
    assert "Description=ortdeploy x" in lines


@pytest.mark.parametrize(
    ("providers", "there", "missing"),
    [
        ("CPU", ["PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "PrivateNetwork=yes"], ["DevicePolicy=closed"]),
        (
            "CUDA, CPU",
            ["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"],
            ["PrivateDevices=yes", "MemoryDenyWriteExecute=yes"],
        ),
        ("QNN, CPU", ["DeviceAllow=/dev/fastrpc-cdsp rw"], ["PrivateDevices=yes", "DeviceAllow=char-nvidia* rw"]),
        ("Rknpu, CPU", [], ["PrivateDevices=yes", "DevicePolicy=closed", "ProtectClock=yes"]),
    ],
)
def test_devices_of_the_providers_stay_visible_and_no_others(
    units: Units, providers: str, there: list[str], missing: list[str]
) -> None:
    lines = units(providers=providers)
    assert set(there) <= set(lines)
    assert not set(missing) & set(lines)


def test_only_who_reads_or_writes_a_url_gets_a_network(units: Units) -> None:
    assert "RestrictAddressFamilies=AF_UNIX" in units()
    lines = units(input="https://example.org/x.npy")
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in lines
    assert "PrivateNetwork=yes" not in lines


def test_what_jobs_end_by_themselves_is_nothing_for_the_watchdog(units: Units) -> None:
    assert "WatchdogSec=300" in units(timeout="30s")
    assert "WatchdogSec=1800" in units(timeout="10min")


def test_names_and_paths_are_words_of_a_unit_file(units: Units) -> None:
    lines = units(folder='a %i "b" $HOME', file="a b %n.yaml", name="")
    assert "# /etc/systemd/system/ortdeploy-a-b--n.service" in lines
    assert "Description=ortdeploy a b %%n" in lines
    assert f'ReadWritePaths="{units.folder}/a %%i \\"b\\" $HOME"' in lines


def test_units_are_written_and_a_manifest_that_is_refused_has_none(units: Units, cli: Cli) -> None:
    units("-o", str(units.folder), "--every", "1h")
    assert (units.folder / "ortdeploy-demo.timer").is_file()
    assert (units.folder / "ortdeploy-demo.service").is_file()
    (units.folder / "d/m.yaml").write_text("jobz: 1\n")
    refused = cli("service", units.folder / "d/m.yaml")
    assert (refused.code, refused.out) == (1, "")
    assert cli("service", units.folder / "nowhere.yaml").code == 1


ANALYZE = shutil.which("systemd-analyze") or ""


@pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("flags", [(), ("--every", "30s")])
@pytest.mark.parametrize("providers", ["CPU", "CUDA, CPU"])
def test_systemd_takes_the_units_and_finds_little_exposed(units: Units, providers: str, flags: tuple[str, ...]) -> None:
    units(*flags, "-o", str(units.folder), providers=providers)
    files = sorted(map(str, units.folder.glob("ortdeploy-demo.*")))
    verified = subprocess.run([ANALYZE, "verify", *files], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    service = next(one for one in files if one.endswith(".service"))
    least = [ANALYZE, "security", "--offline=true", "--threshold=25", service]
    assert subprocess.run(least, capture_output=True, check=False).returncode == 0
