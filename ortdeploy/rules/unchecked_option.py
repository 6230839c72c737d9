"""What it catches: an option of a known provider that is written among the session options.

Why: a plugin provider also takes its options from session options named ep.NAMEexecutionprovider.OPTION, but nothing
checks them there. Types, paths and secrets are checked only under the provider's `options:`. Options of providers that
ortdeploy does not know may stay among the session options.

Example:

    session: {config: {ep.openvinoexecutionprovider.load_config: '{"CPU": {"CACHE_DIR": "/tmp"}}'}}

How to fix: write it under the provider's options: {provider: OpenVINO, options: {load_config: {CPU: {CACHE_DIR: a}}}}.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unchecked-option", summary="Provider option is written among session options")

_OPTION = re.compile(r"ep\.(?P<provider>[a-z0-9]+executionprovider)\.(?P<option>.*)")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for key in model.session.get("config", {}):
            found = _OPTION.fullmatch(key)
            provider = find_provider(found["provider"]) if found else None
            if found and provider:
                detail = (
                    f"{key} is an option of {provider.name}, and nothing checks it here. Write {found['option']} under "
                    f"options: of the provider, where its type and the paths in it are checked."
                )
                yield Finding(at=(*model.at, "session", "config", key), detail=detail, key=True, model=model.name)
