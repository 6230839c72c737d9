"""The output formats by name."""

from ortdeploy.sinks import csv, jsonl, npz
from ortdeploy.sinks.protocol import SinkModule

SINKS: dict[str, SinkModule] = {
    "csv": csv,
    "jsonl": jsonl,
    "npz": npz,
}
