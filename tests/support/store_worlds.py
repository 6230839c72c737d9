"""An output on a store that several machines make, each with a ledger of its own: by runs, and by shards of plans."""

from dataclasses import dataclass

from msgspec.structs import replace

from ortdeploy.files.digests import file_digest
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.open_plans import tidy
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from support.shards import on_store
from support.worlds import ENDED, World

_SHARDS_ONLY = "on a store only shards go on"


@dataclass
class StoreWorld(World):
    """What one machine sees of the output at a URL. Machines with the same `plans` have each other's plan files."""

    url: str = ""

    @property
    def place(self) -> SharedPlace:
        """The store."""
        return SharedStore(self.url)

    def plan(self) -> Plan:
        """Return what is to be done now, on the store."""
        return on_store(super().plan(), self.url)

    def end(self) -> str | None:
        """Bring everything to its end, by what the messages advise; return why that is left to another machine, if so.

        Raises AssertionError if that leads nowhere.
        """
        for _ in range(6):
            why = self.end_of_plans()
            if why is not None:
                return why
            applied = self.apply()
            assert applied is not None
            if applied.status in ENDED:
                tidy(self.place)  # as the next command does
                return None
            if _SHARDS_ONLY not in (applied.reason or ""):
                return applied.reason
            if not run_jobs(self.plan())[0].input.files:
                return None
            self.save_plan()
            made, done = self.shard(0, 1), self.finish()
            assert made is not None
            assert done is not None
            if done.status not in ENDED:
                return done.reason if made.status in ENDED else made.reason
        raise AssertionError(f"it comes to no end: {applied}")

    def end_of_plans(self) -> str | None:
        """Finish the plans that are open; return why that is left to another machine, if so."""
        for digest in self.open():
            self.saved = replace(self.plans[digest], folder=str(self.inbox.at / "work"))
            made = self.shard(0, 1)
            assert made is not None
            if made.refused:
                return made.reason
            if digest in self.open():
                assert made.status in ENDED, made.reason
                done = self.finish()
                assert done is not None
                if done.status not in ENDED:
                    return done.reason
        return None

    def check(self) -> None:
        """Raise AssertionError unless the store has what the ledger says: each row of each file, once."""
        for path in self.inbox.out.glob("part-*"):
            path.unlink()
        self.inbox.out.mkdir(exist_ok=True)
        for name in self.place.names(""):
            if name.startswith("part-"):
                (self.inbox.out / name).write_bytes(self.place.read(name) or b"")
        super().check()
        for part in self.inbox.record().parts:
            assert part.file is None or file_digest(self.inbox.out / part.file) == part.sha256
