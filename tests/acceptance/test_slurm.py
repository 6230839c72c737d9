"""A saved plan as an array of a real Slurm: one controller and one node on this machine, where Debian's slurm is."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import MANIFEST, REPOSITORY, Cli
from support.waiting import wait_for

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "scontrol")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        any(shutil.which(name, path=PATH) is None for name in NEEDED),
        reason="Slurm is not installed: apt-get install slurmctld slurmd slurm-client munge",
    ),
    pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="a node of Slurm is root's"),
]

SMALL = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 4").replace("size: 8", "size: 4")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """munged, slurmctld and slurmd, with files of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        program = folder / "bin/ortdeploy"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m ortdeploy "$@"\n')
        program.chmod(0o755)
        self._configure()
        self.env = {**os.environ, "PATH": f"{folder}/bin:{PATH}", "SLURM_CONF": str(folder / "slurm.conf")}

    def _configure(self) -> None:
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            ports = one.getsockname()[1], other.getsockname()[1]
        host, cores = socket.gethostname().split(".")[0], os.cpu_count()
        settings = {"folder": self.folder, "controller": ports[0], "node": ports[1], "host": host, "cores": cores}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**settings))

    def start(self) -> None:
        munge = {"key-file": "munge.key", "socket": "munge.socket", "log-file": "munge.log", "pid-file": "munge.pid"}
        files = [f"--{name}={self.folder / file}" for name, file in munge.items()]
        self._run("munged", "--foreground", "--force", f"--seed-file={self.folder / 'munge.seed'}", *files)
        wait_for((self.folder / "munge.socket").exists)
        self._run("slurmctld", "-D", "-c")
        self._run("slurmd", "-D")
        wait_for(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"))

    def _run(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            started = subprocess.Popen(command, env=self.env, stdout=out, stderr=out, start_new_session=True)
        self._processes.append(started)

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, encoding="utf-8", check=False)
        return done.stdout

    def submit(self, cwd: Path, *arguments: str) -> str:
        """Submit a job; return its number."""
        command = ("sbatch", "--parsable", *arguments)
        done = subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def states(self, job: str) -> list[str]:
        """How the tasks of a job are: JobState and ExitCode."""
        text = self.ask("scontrol", "show", "job", job, "--oneliner")
        found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
        return [f"{one['JobState']} {one['ExitCode']}" for one in found]

    def wait(self, job: str) -> list[str]:
        """Wait until a job has ended."""

        def ended() -> Sequence[str]:
            states = self.states(job)
            running = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"}
            return [] if not states or any(one.split()[0] in running for one in states) else states

        return list(wait_for(ended))

    def stop(self) -> None:
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    started = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture
def plan(cli: Cli, deployment: Path) -> Path:
    (deployment / "m.yaml").write_text(SMALL)
    shutil.copy(REPOSITORY / "deployments/cluster/array.sbatch", deployment)
    assert cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json").code == 0
    return deployment / "plan.json"


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "outbox/run").glob("part-*")}


def test_an_array_of_slurm_makes_the_parts_and_a_job_behind_it_finishes(
    slurm: Slurm, cli: Cli, plan: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = Path(shutil.copytree(plan.parent, tmp_path_factory.mktemp("alone") / "copy"))
    assert cli("apply", alone / "m.yaml").code == 0
    array = slurm.submit(plan.parent, "--array=10-14:2", "--cpus-per-task=1", "--mem=0", "array.sbatch")
    end = slurm.submit(plan.parent, f"--dependency=afterany:{array}", "--wrap", "ortdeploy finish plan.json")
    assert slurm.wait(end) == ["COMPLETED 0:0"], (plan.parent / f"slurm-{end}.out").read_text()
    assert slurm.wait(array) == ["COMPLETED 0:0"] * 3
    assert parts(plan.parent) == parts(alone)
    assert "5 of 5 parts decided" in (plan.parent / f"slurm-{end}.out").read_text()


@pytest.mark.slow
def test_a_task_whose_plan_is_refused_ends_with_64(slurm: Slurm, plan: Path) -> None:
    model = plan.parent / "double.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    array = slurm.submit(plan.parent, "--array=0-0", "--cpus-per-task=1", "--mem=0", "array.sbatch")
    assert slurm.wait(array) == ["FAILED 64:0"]
    assert parts(plan.parent) == {}
