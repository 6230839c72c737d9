"""All facts that planning one manifest needs."""

from collections.abc import Mapping

from msgspec import Struct, field

from ortdeploy.facts.data import FileFacts, InputFacts, OutputFacts
from ortdeploy.facts.host import MachineFacts, RuntimeFacts
from ortdeploy.facts.models import AdapterFacts, DiffusionFacts, ModelFacts
from ortdeploy.facts.problems import Problem


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that planning one manifest needs to know; the keys are the manifest's names.

    `resources` are files that operations read, `option_files` those that are opened with sessions, `diffusion` the
    folders of presets by pipeline.
    `path_problems` are those of files that options name, by kind and path as written; `gate_problems` say of folders of
    golden checks that gate jobs why they cannot pass; `links_out` are links that lead out of the manifest's tree,
    by the path of the folder that they are in.
    """

    runtime: RuntimeFacts
    models: Mapping[str, ModelFacts]
    adapters: Mapping[str, AdapterFacts]
    inputs: Mapping[str, InputFacts]
    outputs: Mapping[str, OutputFacts]
    machine: MachineFacts | None = None
    labels: Mapping[str, FileFacts] = field(default_factory=dict)
    resources: Mapping[str, FileFacts] = field(default_factory=dict)
    option_files: Mapping[str, FileFacts] = field(default_factory=dict)
    diffusion: Mapping[str, DiffusionFacts] = field(default_factory=dict)
    path_problems: Mapping[tuple[str, str], Problem] = field(default_factory=dict)
    gate_problems: Mapping[str, Problem] = field(default_factory=dict)
    links_out: Mapping[str, str] = field(default_factory=dict)
