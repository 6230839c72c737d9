"""Lets pyarrow do without pandas, which it imports for the first array that it makes if pandas is installed.

That takes 40 MB and longer than a small job, for conversions that nothing here uses. pyarrow looks for pandas once, so
it is enough that it finds none then. Up to version 17 its native code looks again, and pandas is imported all the same.
"""

import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_LIBRARY, _SPARED = "pyarrow", "pandas"


class _Finder:
    """A finder, as `sys.meta_path` has them, of pyarrow alone. What others import, pandas included, is as ever."""

    looking: int | None = None
    """The thread in which pyarrow looks for pandas."""

    def find_spec(
        self, name: str, _path: "Sequence[str] | None" = None, _target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        """Return where pyarrow is, with a loader of its own. Raises ModuleNotFoundError while it looks for pandas."""
        if name == _SPARED and self.looking == threading.get_ident():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        spec = PathFinder.find_spec(name) if name == _LIBRARY else None
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(SourceFileLoader):
    """Loads pyarrow, and lets it look for pandas in vain."""

    def __init__(self, loader: SourceFileLoader, finder: _Finder) -> None:
        super().__init__(loader.name, loader.path)
        self._finder = finder

    def exec_module(self, module: "ModuleType") -> None:
        super().exec_module(module)
        if _SPARED in sys.modules:  # which may be importing pyarrow
            return
        self._finder.looking = threading.get_ident()
        try:
            module.array([])
        finally:
            self._finder.looking = None


def spare_pandas() -> None:
    """Keep pandas from being imported by pyarrow in this process, which must be one of this program's own."""
    sys.meta_path.insert(0, _Finder())
