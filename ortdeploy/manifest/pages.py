"""Pages of the diagnostics that the document and schema stages give; rules carry their own page with them."""

PAGES: dict[str, tuple[str, str]] = {
    "alias-bomb": (
        "Too many values",
        "Nested aliases can make a small file unfold to gigabytes. A manifest may unfold to 200,000 values and 64 "
        "levels. Write the repeated part once and refer to it by name: provider chains under providers: exist for it.",
    ),
    "alias-cycle": (
        "Alias inside its own anchor",
        "A YAML alias that stands inside the value it refers to has no end. Remove the alias.",
    ),
    "ambiguous-profile": (
        "Several profiles hold on one device",
        "A deployment runs one profile on a device, and the when: of several hold. Order means nothing: a profile that "
        "is inserted would change what all devices run. Let one exclude the other, with not:, a bound, or a label.",
    ),
    "ambiguous-scalar": (
        "Number that YAML readers disagree about",
        "YAML 1.1 and 1.2 read 010, 1_000, 1:30, .inf and .nan differently: an editor may show one number and another "
        "tool use a second. Write the plain decimal number, or quote it when it is text.",
    ),
    "byte-order-mark": (
        "Byte order mark at the start",
        "The file begins with the invisible character U+FEFF. ortdeploy ignores it, other tools may not. "
        "Save the file as UTF-8 without a byte order mark.",
    ),
    "duplicate-key": (
        "Key written twice",
        "A key may stand once in a mapping. YAML parsers silently keep the last one, so one of the two settings "
        "would be lost. Remove or rename one.",
    ),
    "edited-plan": (
        "Saved plan is not what the manifest gives",
        "A plan file is never run as it is: apply plans again from the manifest, with the options that the "
        "file names, and compares. Somebody changed the file, or another version of ortdeploy wrote it. The message "
        "names the first place that differs. Make the plan again.",
    ),
    "empty-manifest": (
        "Empty manifest",
        "A manifest needs at least version: and models:. `ortdeploy init MODEL.onnx` writes one from a model.",
    ),
    "missing-key": (
        "Missing key",
        "A mapping lacks a key that it must have. `ortdeploy schema` prints what each part of a manifest needs.",
    ),
    "moved-fact": (
        "Saved plan rests on something that has changed",
        "A plan names the manifest, models, adapters, inputs, ONNX Runtime version and providers that it was made "
        "from. One of them is different now, so the plan no longer says what would happen. Make the plan again.",
    ),
    "no-profile": (
        "No profile holds on this device",
        "otherwise: refuse says that a device on which no when: holds runs nothing. The message has the facts that "
        "were asked for. Correct a when:, or name a profile with --profile; --profile none takes none.",
    ),
    "non-string-key": (
        "Key that is not text",
        "YAML reads on, yes, null, 1 and 2024.5 as something else than text, also as keys. Quote the key; only a "
        "share such as 0.99 is taken as it is written.",
    ),
    "nothing-to-check": (
        "Nothing to check",
        "ortdeploy check ran no model, because none that it was asked for has checks. A step in CI that checks nothing "
        "must not pass. Name folders of golden inputs and outputs under checks:, or say with checks: [] that there are "
        "none.",
    ),
    "not-for-bundles": (
        "Not for a bundle",
        "A bundle holds all that its manifest names, so that what was signed is what runs. It takes files below the "
        "manifest's folder, under names that every system takes for the same, and models by URL with their digest; "
        "never inputs, outputs, state, links out of the tree, pointers of Git LFS, or what on_end: runs.",
    ),
    "not-utf8": ("File is not UTF-8", "Manifests are UTF-8 text. Save the file with that encoding."),
    "override-conflict": (
        "Value given on the command line does not fit",
        "--set KEY=VALUE replaces one value of the manifest; the keys before the last one must be mappings or list "
        "items that exist. Keys are separated by dots, list items are numbers: --set jobs.read.batch.size=16.",
    ),
    "oversized-file": (
        "File too large for a manifest",
        "A manifest may have 4 MiB. A file of that size is most often a model or data by mistake.",
    ),
    "profile-changed": (
        "Device has lost what its profile was chosen for",
        "The last apply ran another profile, because a provider or a device opened, or because there was more memory, "
        "or more cores. A device on which that comes and goes would run two profiles in turn, so nothing runs. That "
        "ends by itself when the fact is back. If the loss is meant, ortdeploy apply --choose takes the other one.",
    ),
    "secret-in-bundle": (
        "Secret in a bundle",
        "A bundle lies in registries and on devices, and whoever has it can read the manifest in it. Give secrets to "
        "each device: an overlay there, or the settings of the package that needs them.",
    ),
    "several-documents": (
        "Several documents in one file",
        "One file is one deployment. YAML's --- starts another document, which would be ignored. Split the file.",
    ),
    "state-outside-tree": (
        "State directory leads out of the manifest's folder tree",
        "The ledger, caches and locks lie in .ortdeploy beside the manifest. A checkout may have a link of that name, "
        "or one inside of it, and ortdeploy would write somewhere else. If that is what you want, name the place with "
        "--state-dir, or allow its root with --allow-root.",
    ),
    "unworkable-manifest": (
        "Manifest cannot be worked on",
        "Something that this manifest needs on this machine failed. Most often its ledger is damaged, or a newer "
        "ortdeploy wrote it; the message says what to do. The same command goes on with other manifests.",
    ),
    "too-deep": ("Nesting too deep", "A manifest may nest 64 levels; a real one needs about eight."),
    "undecided-profile": (
        "Device file lacks a fact that decides the profile",
        "Whether a when: holds depends on a fact that a device file does not tell, and a guess would be a plan for "
        "another device. The message names the field to add. ortdeploy device writes all of them on the device.",
    ),
    "undefined-alias": ("Alias without an anchor", "*name repeats what &name marked earlier in the file."),
    "undefined-profile": (
        "Profile that is not in the manifest",
        "--profile NAME applies the overrides under profiles: NAME:, and otherwise: NAME does where no when: holds. "
        "The manifest has no such profile.",
    ),
    "unfetched-file": (
        "Model or adapter cannot be fetched",
        "A model or an adapter that is named by a URL is fetched once by each machine, into the content store of the "
        "state directory, under the digest in the manifest. It could not be fetched, the server gave another file, "
        "or there is too little room for it. Once it is there, no server is asked for it any more.",
    ),
    "unknown-key": (
        "Unknown key",
        "Manifests are strict: a key that ortdeploy does not know is an error, because a misspelt key would "
        "otherwise leave its setting silently at the default. Keys that begin with x- at the top are free.",
    ),
    "unreadable-device": (
        "Device file cannot be read",
        "--device names a device file, written by `ortdeploy device` on the device or by hand; `ortdeploy schema "
        "device` prints its schema.",
    ),
    "unreadable-manifest": (
        "Manifest cannot be read",
        "The file is missing, is not a file, or may not be read by this user; or a folder holds no *.yaml.",
    ),
    "unreadable-plan": (
        "Saved plan cannot be read",
        "A plan file is JSON written by `ortdeploy plan --out`, of a format version that this ortdeploy knows. Long "
        "lists of input files are in tables beside it: copy them with the plan.",
    ),
    "value-not-allowed": ("Value not allowed", "The value has the right type, but is not one of those allowed here."),
    "wrong-type": (
        "Value of the wrong type",
        "For example text where a number is wanted. In YAML the bare words yes, no, on and off are booleans, "
        "and an empty value is null; quotes make text of anything.",
    ),
    "yaml-syntax": ("Not YAML", "The text cannot be read as YAML. The message is that of the YAML parser."),
    "yaml-tag": ("YAML tag", "Tags such as !!python/object ask a parser to build objects. A manifest is plain data."),
}

SUMMARIES: dict[str, str] = {rule: summary for rule, (summary, _) in PAGES.items()}
