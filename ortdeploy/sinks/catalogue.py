"""The output formats by name."""

from ortdeploy.modules import Modules, as_it_is
from ortdeploy.sinks.protocol import SinkModule

SINKS: Modules[SinkModule] = Modules("ortdeploy.sinks", ("arrow", "csv", "jsonl", "npy", "npz", "parquet"), as_it_is)
