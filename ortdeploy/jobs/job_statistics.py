"""Measures a job while it runs, and adds that to what earlier runs have measured."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ortdeploy.durations import Histogram, sum_of
from ortdeploy.parts.part_writer import PartWriter
from ortdeploy.process.leaks import GROWTH
from ortdeploy.process.memory import peak_memory, process_usage, resident_memory
from ortdeploy.reports.proven import Proven, added, proven_by, without
from ortdeploy.reports.samples import Samples
from ortdeploy.reports.statistics import STAGES
from ortdeploy.streaming.stream import Stream

_MOST_POINTS = 240


class JobStatistics:
    """Adds the measurements of this run to those of earlier runs."""

    def __init__(self, earlier: Mapping[str, Any], stream: Stream, writer: PartWriter) -> None:
        """Take the numbers of the earlier runs, and the stream and the writer, which measure this one."""
        self._begin = time.perf_counter()
        self._usage = process_usage()
        self._peak_before = peak_memory() or 0
        self.memory_before = resident_memory() or 0
        """The resident set when this run began, in bytes; 0 if nobody knows."""
        self._cpu = time.thread_time()
        self._earlier = earlier
        self._seconds_before = float(earlier.get("seconds", 0.0))
        self._stream = stream
        self._writer = writer
        self._proven_before = self._proven()
        self._commit_times = Histogram()
        self._timeline: list[list[float]] = [list(point) for point in earlier.get("timeline", [])]
        self._samples = Samples(earlier)
        self.growth: Mapping[str, float] = {}
        self._halved = 0
        self._lost: set[str] = set()
        if self._seconds_before:
            self._samples.note(self._seconds_before, "the next run goes on")
        self._stages_before = {name: Histogram.from_plain(stage) for name, stage in earlier.get("stages", {}).items()}

    @property
    def seconds(self) -> float:
        """Seconds of this run so far."""
        return time.perf_counter() - self._begin

    @property
    def highest_memory(self) -> int:
        """The largest resident set of this run, in bytes: the peak of the process, if it is not of what was before."""
        peak = peak_memory() or 0
        return peak if peak > self._peak_before else self._samples.highest

    def look(self, rows: int) -> None:
        """Take a sample of the job and of its events since the last one, if one is due."""
        if self._samples.is_due():
            self._look(rows)

    def _look(self, rows: int) -> None:
        seconds = self._seconds_before + self.seconds
        self._samples.take(seconds, rows)
        halved = sum(member.rows.halvings for member in self._stream.members)
        if halved > self._halved:
            self._samples.note(seconds, "batches are halved")
        self._halved = halved
        for member in self._stream.members:
            if member.failure is not None and member.name not in self._lost:
                self._lost.add(member.name)
                self._samples.note(seconds, f"session {member.name} takes no more batches")

    def note(self, event: str) -> None:
        """Note an event for the report."""
        self._samples.note(self._seconds_before + self.seconds, event)

    def committed(self, rows: int, seconds: float) -> None:
        """Note a commit, and the number of rows that are done."""
        self._commit_times.add(seconds)
        self._timeline.append([round(self._seconds_before + self.seconds, 3), rows])
        if len(self._timeline) > _MOST_POINTS:
            self._timeline = self._timeline[1::2]

    def plain(self) -> dict[str, Any]:
        """Return all numbers as JSON."""
        members = self._stream.members
        counts = [member.rows.counts for member in members]
        adapters = Counter(self._earlier.get("adapter_rows", {}))
        for one in counts:
            adapters.update({" + ".join(names) or "none": rows for names, rows in dict(one.adapter_rows).items()})
        written = Counter(self._earlier.get("written", {}))
        for member in members:
            written.update(member.rows.written)
        peaks = [peak for peak in (self._earlier.get("peak_memory_bytes"), peak_memory()) if peak is not None]
        session_seconds = float(self._earlier.get("session_seconds", 0.0)) + self._stream.session_seconds
        return {
            "seconds": round(self._seconds_before + self.seconds, 6),
            "session_seconds": round(session_seconds, 6),
            "stages": {name: histogram.plain() for name, histogram in self._stages().items()},
            "adapter_rows": dict(sorted(adapters.items())),
            **({"written": dict(sorted(written.items()))} if written else {}),
            "retries": self._counted("retries", sum(member.rows.counts.retried for member in members)),
            "batches_cut_anew": self._counted(
                "batches_cut_anew", sum(member.rows.counts.cut_anew for member in members)
            ),
            "batches_halved": self._counted("batches_halved", sum(member.rows.halvings for member in members)),
            "peak_memory_bytes": max(peaks) if peaks else None,
            "process": self._process(),
            "timeline": self._timeline,
            "proven": added(self._earlier.get("proven", {}), without(self._proven(), self._proven_before)),
            **self._samples.plain(),
            **({GROWTH: self.growth} if self.growth else {}),
        }

    def _proven(self) -> Proven:
        return proven_by(member.rows.runs.proven for member in self._stream.members)

    def _counted(self, name: str, now: int) -> int:
        return int(self._earlier.get(name, 0)) + now

    def _process(self) -> dict[str, float]:
        """Return the processor seconds and faults of the process for the job, in this run and those before."""
        before = self._earlier.get("process", {})
        return {
            name: round(before.get(name, 0) + value - self._usage[name], 3) for name, value in process_usage().items()
        }

    def _stages(self) -> dict[str, Histogram]:
        rows = [member.rows for member in self._stream.members]
        now = {
            "read": [self._stream.reader.read_times],
            "prepare": [self._stream.reader.prepare_times],
            "run": [one.runs.run_times for one in rows],
            "postprocess": [one.postprocess_times for one in rows],
            "write": [self._writer.write_times],
            "commit": [self._writer.sync_times, self._commit_times],
        }
        stages = {name: sum_of([*now[name], self._stages_before.get(name, Histogram())]) for name in STAGES}
        stages["run"].cpu += self._cpu_of_sessions()
        return stages

    def _cpu_of_sessions(self) -> float:
        """Return the processor seconds of the sessions' own threads: the process's less the job's threads."""
        usage = process_usage()
        used = sum(usage[name] - self._usage[name] for name in usage if name.startswith("cpu_seconds"))
        return max(used - (time.thread_time() - self._cpu) - self._stream.cpu_seconds, 0.0)
