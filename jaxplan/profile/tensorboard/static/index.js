// The Plan tab. TensorBoard loads this module and calls render().
import { showChoice } from "./choice.js";
import { showComparison } from "./compare.js";
import { showCheck } from "./check.js";
import { Fault, listRuns, namesOf } from "./documents.js";
import { el } from "./dom.js";
import { showGoodput } from "./goodput.js";
import { showRun } from "./measured.js";
import { notice } from "./parts.js";
import { showPlan } from "./plan.js";
import { RunList, emptyMessage } from "./runs.js";
import { showSearch } from "./search.js";
import { followTheme } from "./theme.js";

const AGAIN_MS = 20000; // between two looks at the log directory (chosen: TensorBoard's own is 30 s)
const KEPT = "jaxplan";

// A view draws one document of its first kind, with what belongs to it.
const VIEWS = [
  {
    key: "search",
    title: "Plans",
    kinds: ["search", "candidates"],
    show: (into, run) => showSearch(into, run, (name) => go({ view: "plan", file: name })),
  },
  { key: "plan", title: "One plan", kinds: ["plan", "explain"], show: showPlan },
  { key: "check", title: "Check", kinds: ["check"], show: showCheck },
  { key: "run", title: "Measured", kinds: ["run"], show: showRun },
  { key: "compare", title: "Compared", kinds: ["compare"], show: showComparison },
  { key: "choice", title: "Machine sizes", kinds: ["choice"], show: showChoice },
  { key: "goodput", title: "Goodput", kinds: ["goodput"], show: showGoodput },
];

const state = { run: null, view: null, file: null, runs: [], listing: null, turn: 0 };
let list, main;

export async function render() {
  document.head.append(
    el("link", { rel: "stylesheet", href: "style.css" }),
    el("meta", { name: "viewport", content: "width=device-width" }),
  );
  document.documentElement.lang = "en";
  followTheme();
  list = new RunList((name) => go({ run: name, view: null, file: null }));
  main = el("main", {});
  document.body.append(list.node, main);
  await refresh();
  setInterval(() => document.hidden || refresh(), AGAIN_MS);
}

/** Lists the runs; opens the one that was asked for, or was open before, or is the newest. */
async function refresh() {
  let listing;
  try {
    listing = await listRuns();
  } catch (error) {
    if (!state.run) main.replaceChildren(notice(error.message, "fault"));
    return;
  }
  const same = JSON.stringify(listing) === JSON.stringify(state.listing);
  if (same) return;
  state.listing = listing;
  state.runs = listing.runs;
  list.show(listing);
  const now = state.runs.find((run) => run.name === state.run?.name);
  if (!state.runs.length) main.replaceChildren(emptyMessage(listing.logdir));
  else if (!now) await go(start());
  else if (now.modified_s !== state.run.modified_s) offer(now);
}

/** What the address asks for (?p.jaxplan.run=NAME), else what was open in this browser tab, else the newest run. */
function start() {
  let asked = null,
    kept = {};
  try {
    asked = new URLSearchParams(window.parent.location.search).get("p.jaxplan.run");
    kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  } catch {
    // another origin around us, or no storage: the newest run is as good
  }
  if (asked && asked !== kept.run) return { run: asked, view: null, file: null };
  return { run: kept.run ?? null, view: kept.view ?? null, file: kept.file ?? null };
}

function offer(now) {
  if (main.querySelector(".offer")) return;
  main.prepend(
    el(
      "p",
      { class: "notice offer", role: "status" },
      "This run was written again. ",
      el("button", { type: "button", onclick: () => go({ run: now.name }) }, "Show it"),
    ),
  );
}

/** Changes what is shown. */
async function go(change) {
  Object.assign(state, change);
  const name = "run" in change ? change.run : state.run?.name;
  state.run = state.runs.find((run) => run.name === name) ?? state.runs[0];
  const possible = VIEWS.filter((view) => filesOf(view, state.run).length);
  const view = possible.find((one) => one.key === state.view) ?? possible[0];
  state.view = view?.key ?? null;
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ run: state.run.name, view: state.view, file: state.file }));
  } catch {
    // private windows have no storage: what is open is forgotten, nothing else
  }
  list.pick(state.run.name);
  const into = el("div", { class: "view", "data-view": state.view }),
    turn = ++state.turn;
  main.replaceChildren(tabs(possible), into);
  main.scrollTop = 0;
  await shown(into, view);
  if (turn === state.turn) into.dataset.ready = "true";
}

async function shown(into, view) {
  try {
    if (view) {
      const files = namesOf(state.run, view.kinds[0]),
        file = files.includes(state.file) ? state.file : files[0];
      if (files.length > 1) into.append(choice(view, files, file));
      await view.show(into, state.run, file);
    } else into.append(notice("This run folder holds nothing that this tab draws."));
  } catch (error) {
    into.append(
      notice(
        error instanceof Fault
          ? error.message
          : `This view could not be drawn: ${error.message}. The document may be of another version of jaxplan.`,
        "fault",
      ),
    );
    if (!(error instanceof Fault)) console.warn(error);
  }
}

function tabs(possible) {
  const title = el("span", { class: "run-title" }, state.run.name === "." ? "(log directory)" : state.run.name);
  return el(
    "header",
    {},
    title,
    el(
      "div",
      { role: "tablist" },
      possible.map((view) =>
        el(
          "button",
          {
            type: "button",
            role: "tab",
            "data-view": view.key,
            "aria-selected": String(view.key === state.view),
            onclick: () => go({ view: view.key, file: null }),
          },
          view.title,
        ),
      ),
    ),
  );
}

const filesOf = (view, run) => view.kinds.flatMap((kind) => namesOf(run, kind));

/** A choice where a run has several documents of a kind. */
function choice(view, files, file) {
  const option = (name) => el("option", { value: name, selected: name === file }, name);
  const pick = el("select", { id: "file", onchange: (event) => go({ file: event.target.value }) }, files.map(option));
  return el("label", { class: "controls" }, `${view.title}: `, pick);
}
