"""An output that this process holds: its folder, its ledger, and its store if it has one."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord

if TYPE_CHECKING:
    from ortdeploy.files.object_store import Upload


class OpenOutput(Struct, frozen=True, kw_only=True):
    """An output that this process holds: its folder, its ledger, and its store if it has one."""

    name: str
    """What the ledger calls the folder."""
    folder: Path
    ledger: Ledger
    upload: "Upload | None"
    """What sends files to the output's store; None if the output is local."""

    @classmethod
    def of(cls, ledger: Ledger, folder: Path, store: str | None) -> "OpenOutput":
        """Return an output in a folder; `store` is the URL of its store, if it has one. Raises OrtdeployError."""
        upload = None
        if store is not None:
            from ortdeploy.files.object_store import Upload  # noqa: PLC0415  only for stores

            upload = Upload(store, folder)
        return cls(name=ledger.key(folder), folder=folder, ledger=ledger, upload=upload)

    def record(self) -> OutputRecord | None:
        """Return what the ledger knows of the output; None before it has begun."""
        return self.ledger.output(self.name)

    def check_alone(self) -> None:
        """Raise OrtdeployError if another machine has taken the output's store over."""
        if self.upload is not None:
            self.upload.check_alone()

    def send(self, names: Collection[str]) -> None:
        """Upload files over the store's objects of the same names, if the output is on a store."""
        if self.upload is not None:
            self.upload.replace(names)
