"""The further forms of a run's report by name, as `report:` of a job asks for them."""

from collections.abc import Callable, Mapping
from typing import Any

from ortdeploy.running.reports import html, prometheus

REPORTS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "html": ("_run.html", html.render),
    "prometheus": ("_run.prom", prometheus.render),
}
"""By name, the file's name and what makes its text of the report."""
