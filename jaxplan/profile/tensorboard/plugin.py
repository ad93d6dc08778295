"""TensorBoard's plugin `jaxplan`: the *Plan* tab.

An error while this module is imported stops TensorBoard from starting: nothing heavy is imported at its top, and never
JAX.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from jaxplan.errors import InputError
from jaxplan.profile.tensorboard.documents import Documents
from jaxplan.profile.tensorboard.mesh import placement_json
from jaxplan.profile.tensorboard.runs import Document, Runs
from jaxplan.profile.tensorboard.summary import Summaries

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css"}
MOST_SUMMARIES = 500        # runs whose documents are opened for the list (chosen: a second at first, then nothing)
JSON = "application/json"


class JaxplanPlugin(base_plugin.TBPlugin):
    """Serves the tab's own files, the list of runs, and the documents of a run."""

    plugin_name = "jaxplan"

    def __init__(self, context: base_plugin.TBContext) -> None:
        super().__init__(context)
        self._logdir = context.logdir or ""
        self._runs = Runs(Path(self._logdir)) if self._logdir else None
        self._documents, self._summaries = Documents(), Summaries()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """How TensorBoard loads the tab."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Plan", disable_reload=False)

    def is_active(self) -> bool:
        """Whether there is anything to show; asked often."""
        return self._runs is not None and self._runs.any()

    def get_plugin_apps(self) -> dict[str, Callable]:
        """Every route."""
        routes = {f"/{file.name}": self._static for file in STATIC.iterdir() if file.suffix in TYPES}
        routes |= {"/runs": self._list, "/document": self._document, "/placement": self._placement}
        return {route: wrappers.Request.application(answer) for route, answer in routes.items()}

    def _static(self, request: wrappers.Request) -> wrappers.Response:
        file = next(file for file in STATIC.iterdir() if file.name == request.path.rpartition("/")[2])
        return http_util.Respond(request, file.read_bytes(), TYPES[file.suffix])

    def _list(self, request: wrappers.Request) -> wrappers.Response:
        listing = self._runs.listing() if self._runs else None
        runs = [
            {
                "name": run.name,
                "modified_s": run.modified_s,
                "documents": {name: document.nbytes for name, document in sorted(run.documents.items())},
                "sessions": list(run.sessions),
                "summary": self._summaries.of(run) if i < MOST_SUMMARIES else {},
            }
            for i, run in enumerate(listing.runs if listing else ())
        ]
        whole = listing.whole if listing else True
        return _respond(request, {"logdir": self._logdir, "runs": runs, "whole": whole})

    def _document(self, request: wrappers.Request) -> wrappers.Response:
        document = self._find(request)
        if document is None:
            return _fault(request, 404, _missing(request))
        tag = f'"{document.version}"'
        if request.headers.get("If-None-Match") == tag:
            return wrappers.Response(status=304, headers={"ETag": tag})
        try:
            body = self._documents.compressed(document)
        except InputError as error:
            return _fault(request, 413, str(error))
        except OSError as error:
            return _fault(request, 404, f"{document.path.name} cannot be read: {error.strerror}")
        return http_util.Respond(request, body, JSON, content_encoding="gzip", headers=[("ETag", tag)])

    def _placement(self, request: wrappers.Request) -> wrappers.Response:
        document = self._find(request)
        if document is None or not document.path.name.startswith("plan"):
            return _fault(request, 404, _missing(request))
        try:
            return _respond(request, placement_json(document.path))
        except (InputError, ValueError) as error:
            return _fault(request, 422, str(error))

    def _find(self, request: wrappers.Request) -> Document | None:
        """The document that a request names: looked up, never joined to a path."""
        if self._runs is None:
            return None
        return self._runs.document(request.args.get("run", ""), request.args.get("name", ""))


def _missing(request: wrappers.Request) -> str:
    return f"run {request.args.get('run', '')!r} has no {request.args.get('name', '')!r}"


def _respond(request: wrappers.Request, data: Any, code: int = 200) -> wrappers.Response:
    return http_util.Respond(request, json.dumps(data, allow_nan=False), JSON, code=code)


def _fault(request: wrappers.Request, code: int, message: str) -> wrappers.Response:
    return _respond(request, {"error": message}, code)
