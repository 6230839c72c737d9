"""The further forms of a run's report by name, as `report:` of a job asks for them."""

from collections.abc import Mapping
from typing import Any, Protocol

from ortdeploy.modules import Modules, as_it_is
from ortdeploy.reports.illustrations import Illustrations


class ReportModule(Protocol):
    """The names that the module of a form has."""

    FILE: str
    """The name of its file."""

    def render(self, report: Mapping[str, Any], shown: Illustrations, /) -> str:
        """Return the file's text."""


REPORTS: Modules[ReportModule] = Modules("ortdeploy.reports", ("html", "prometheus"), as_it_is)
