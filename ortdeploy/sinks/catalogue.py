"""The output formats by name."""

from ortdeploy.sinks import arrow, csv, jsonl, npy, npz, parquet
from ortdeploy.sinks.protocol import SinkModule

SINKS: dict[str, SinkModule] = {
    "arrow": arrow,
    "csv": csv,
    "jsonl": jsonl,
    "npy": npy,
    "npz": npz,
    "parquet": parquet,
}
