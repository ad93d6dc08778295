"""The Plan tab's server: which runs it finds, what it serves, what it refuses. No browser."""

import gzip
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import made_documents as made
import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from jaxplan.errors import InputError
from jaxplan.profile.tensorboard import documents, runs
from jaxplan.profile.tensorboard.documents import Documents
from jaxplan.profile.tensorboard.plugin import JaxplanPlugin
from jaxplan.profile.tensorboard.runs import DEEPEST, Document, Runs

SEARCH = {
    "schema": "jaxplan.search/1",
    "machine": {"name": "v5e 2x4"},
    "workload": {"model": {"name": "tiny"}},
    "plans": [{"mesh": {"data": 1, "fsdp": 8}, "step_time_s": {"value": 1.5, "source": "compiled"}}],
}


@pytest.fixture
def logdir(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.fixture
def plugin(logdir):
    return JaxplanPlugin(types.SimpleNamespace(logdir=str(logdir)))


@pytest.fixture
def get(plugin):
    """GET of one of the plugin's routes: the response."""
    apps = plugin.get_plugin_apps()
    client = Client(lambda environ, start: apps[environ["PATH_INFO"]](environ, start), Response)
    return lambda route, query=None, **headers: client.get(route, query_string=query, headers=headers)


def listed(get):
    return {run["name"]: run for run in get("/runs").json["runs"]}


def test_runs_are_listed_newest_first_with_what_each_holds(get, logdir):
    old = made.write(logdir / "team" / "old", "search.json", SEARCH)
    made.write(logdir / "new", "run.json", made.measured())
    made.write(logdir / "new", "notes.json", {})
    made.write(logdir / "neither", "something.json", {})
    os.utime(old, (1000, 1000))
    found = get("/runs").json
    assert [run["name"] for run in found["runs"]] == ["new", "team/old"]
    assert found["whole"]
    new, old = found["runs"]
    assert list(new["documents"]) == ["run.json"]
    assert new["summary"] == {"label": "fsdp=8", "step_time_s": 0.5, "source": "measured"}
    summary = {"model": "tiny", "machine": "v5e 2x4", "label": "fsdp=8", "step_time_s": 1.5, "source": "compiled"}
    assert old["summary"] == summary and old["modified_s"] == 1000


def test_a_measured_run_is_summed_up_by_what_it_measured_and_its_plans_model(get, logdir):
    plan = {"mesh": [], "workload": {"model": {"name": "tiny"}}, "machine": {"name": "8 x cpu"}, "step_time_s": None}
    made.write(logdir / "run", "plan.json", plan)
    assert listed(get)["run"]["summary"] == {"model": "tiny", "machine": "8 x cpu", "label": "one device"}
    made.write(logdir / "run", "run.json", made.measured())
    summary = {"model": "tiny", "machine": "8 x cpu", "label": "fsdp=8", "step_time_s": 0.5, "source": "measured"}
    plugin = JaxplanPlugin(types.SimpleNamespace(logdir=str(logdir)))
    found = Client(plugin.get_plugin_apps()["/runs"], Response).get("/runs").json["runs"]
    assert found[0]["summary"] == summary


def test_profile_sessions_are_those_that_hold_a_profile(get, logdir):
    made.write(logdir / "run", "run.json", made.measured("run"))
    for session, file in (("run", "host.xplane.pb"), ("compiled-plan", "jaxplan.xplane.pb"), ("empty", "readme")):
        made.write(logdir / "run" / "plugins" / "profile" / session, file, "")
    assert listed(get)["run"]["sessions"] == ["compiled-plan", "run"]


def test_the_log_directory_itself_can_be_a_run(get, logdir):
    made.write(logdir, "search.json", SEARCH)
    assert list(listed(get)) == ["."]
    assert get("/document", {"run": ".", "name": "search.json"}).status_code == 200


def test_a_tab_is_active_from_the_first_run_on(plugin, logdir, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    assert not plugin.is_active()
    made.write(logdir / "run", "search.json", SEARCH)
    assert not plugin.is_active(), "looked again at once"
    now[0] = 100.0
    assert plugin.is_active()


def test_without_a_log_directory_there_is_nothing(logdir):
    plugin = JaxplanPlugin(types.SimpleNamespace(logdir=""))
    assert not plugin.is_active()
    client = Client(plugin.get_plugin_apps()["/runs"], Response)
    assert client.get("/runs").json == {"logdir": "", "runs": [], "whole": True}


def test_folders_deeper_than_anybody_keeps_runs_are_not_looked_at(logdir):
    deepest = logdir.joinpath(*["x"] * DEEPEST)
    made.write(deepest, "search.json", SEARCH)
    made.write(deepest / "x", "search.json", SEARCH)
    assert [run.name for run in Runs(logdir).listing().runs] == ["/".join(["x"] * DEEPEST)]


def test_a_walk_that_ends_early_says_so(logdir, monkeypatch):
    monkeypatch.setattr(runs, "MOST_FOLDERS", 3)
    for i in range(5):
        made.write(logdir / str(i), "search.json", SEARCH)
    listing = Runs(logdir).listing()
    assert not listing.whole and len(listing.runs) == 2      # the log directory itself is the third folder


def test_three_thousand_runs(get, logdir):
    for i in range(3000):
        made.write(logdir / f"run-{i:04}", "search.json", SEARCH)
    found = get("/runs").json["runs"]
    assert len(found) == 3000
    assert sum(bool(run["summary"]) for run in found) == 500


def test_documents_travel_compressed_and_once(get, logdir):
    data = made.candidates(1000)
    made.write(logdir / "run", "candidates.json", data)
    query = {"run": "run", "name": "candidates.json"}
    answer = get("/document", query, **{"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data)) == data
    assert get("/document", query).json == data, "a client that takes no gzip gets text"
    again = get("/document", query, **{"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304 and not again.data


def test_a_document_that_is_written_again_is_served_again(get, logdir):
    path = made.write(logdir / "run", "run.json", {"schema": "jaxplan.run/1", "steps": 1})
    query = {"run": "run", "name": "run.json"}
    first = get("/document", query)
    path.write_text(json.dumps({"schema": "jaxplan.run/1", "steps": 20}))
    second = get("/document", query, **{"If-None-Match": first.headers["ETag"]})
    assert second.status_code == 200 and second.json["steps"] == 20


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("run", "secret.json"),
        ("run", "../secret.json"),
        ("..", "search.json"),
        ("../outside", "search.json"),
        ("run/../../outside", "search.json"),
        ("/etc", "passwd"),
        ("linked", "search.json"),
        ("run", "run.json"),
        ("", ""),
    ],
)
def test_only_documents_of_runs_below_the_log_directory_are_served(get, logdir, run, name):
    made.write(logdir / "run", "search.json", SEARCH)
    made.write(logdir / "run", "secret.json", {"secret": 1})
    outside = logdir.parent / "outside"
    made.write(outside, "search.json", {"secret": 1})
    (logdir / "linked").symlink_to(outside)                               # a folder that is elsewhere
    (logdir / "run" / "run.json").symlink_to(outside / "search.json")     # a file that is elsewhere
    answer = get("/document", {"run": run, "name": name})
    assert answer.status_code == 404 and "secret" not in json.dumps(answer.json["error"]).replace(name, "")
    assert get("/placement", {"run": run, "name": name}).status_code == 404


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_followed(get, logdir):
    made.write(logdir / "run", "search.json", SEARCH)
    assert list(listed(get)) == ["run"]
    outside = logdir.parent / "outside"
    (logdir / "run").rename(outside)
    (logdir / "run").symlink_to(outside)
    assert get("/document", {"run": "run", "name": "search.json"}).status_code == 404


@pytest.mark.parametrize(
    "text",
    ['{"schema": "jaxplan.sea', "", "[]", '{"plans": [1e999]}', '{"machine": {"name": NaN}}', "[" * 100_000, "\xff"],
)
def test_a_broken_document_has_no_summary_and_travels_as_it_is(get, logdir, text):
    made.write(logdir / "run", "search.json", text)
    assert listed(get)["run"]["summary"] == {}
    assert get("/document", {"run": "run", "name": "search.json"}).data == (logdir / "run/search.json").read_bytes()


def test_a_summary_leaves_out_what_is_no_figure(get, logdir):
    text = json.dumps(SEARCH).replace("1.5", "1e999")       # JSON, but no number that a browser could show
    made.write(logdir / "run", "search.json", text)
    assert "step_time_s" not in listed(get)["run"]["summary"]


def test_a_document_that_no_browser_could_hold_is_refused_in_one_line(get, logdir, monkeypatch):
    made.write(logdir / "run", "search.json", SEARCH)
    monkeypatch.setattr(documents, "MOST_BYTES", 10)
    answer = get("/document", {"run": "run", "name": "search.json"})
    assert answer.status_code == 413 and answer.json["error"].startswith("search.json has 0 MiB. Expected at most")


def test_compressed_documents_leave_memory_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "KEPT_BYTES", 3000)
    kept = Documents()
    for i in range(4):
        path = tmp_path / f"{i}.json"
        path.write_bytes(os.urandom(1000))      # does not compress
        kept.compressed(Document(path, 0.0, 1000))
    assert [path.name for path, _ in kept._kept] == ["2.json", "3.json"]
    with pytest.raises(InputError, match="MiB"):
        kept.compressed(Document(path, 0.0, documents.MOST_BYTES + 1))


def test_every_module_that_a_module_imports_is_served(get):
    """From the entry on: a name that is wrong would leave the tab white."""
    pending, seen = ["index.js"], set()
    while pending:
        name = pending.pop()
        answer = get(f"/{name}")
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/javascript"), name
        seen.add(name)
        lines = answer.get_data(as_text=True).splitlines()
        imported = {line.split('"')[1].removeprefix("./") for line in lines if line.startswith(("import ", "} from "))
                    and '"' in line}
        pending += imported - seen
    static = Path(runs.__file__).parent / "static"
    assert seen == {file.name for file in static.glob("*.js")}, "a module that nobody imports"
    assert get("/style.css").headers["Content-Type"].startswith("text/css")


def test_the_plugin_starts_with_nothing_heavy():
    """An import that fails or takes seconds would keep all of TensorBoard from starting."""
    code = (
        "import sys; import jaxplan.profile.tensorboard.plugin\n"
        "print(sorted(set(sys.modules) & {'jax', 'jaxlib', 'numpy', 'pydantic', 'scipy', 'flax', 'tensorflow'}))"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    base = "import sys; from tensorboard.backend import http_util; from tensorboard.plugins import base_plugin\n"
    bare = subprocess.run(
        [sys.executable, "-c", base + code.splitlines()[1]], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout, "more than what TensorBoard itself imports"
