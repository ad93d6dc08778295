// The Plan tab. TensorBoard loads this module and calls render().
import { showComparison } from "./compare.js";
import { showCheck } from "./check.js";
import { Fault, listRuns } from "./documents.js";
import { el } from "./dom.js";
import { showGoodput } from "./goodput.js";
import { showRun } from "./measured.js";
import { notice } from "./parts.js";
import { planNames, showPlan } from "./plan.js";
import { RunList, emptyMessage } from "./runs.js";
import { showSearch } from "./search.js";
import { followTheme } from "./theme.js";

const AGAIN_MS = 20000; // between two looks at the log directory (chosen: TensorBoard's own is 30 s)
const KEPT = "jaxplan";

const VIEWS = [
  {
    key: "search",
    title: "Plans",
    has: (run) => "search.json" in run.documents || "candidates.json" in run.documents,
    show: (into, run) => showSearch(into, run, (name) => go({ view: "plan", plan: name })),
  },
  { key: "plan", title: "One plan", has: (run) => planNames(run).length > 0, show: showOne },
  { key: "check", title: "Check", has: (run) => "check.json" in run.documents, show: showCheck },
  { key: "run", title: "Measured", has: (run) => "run.json" in run.documents, show: showRun },
  { key: "compare", title: "Compared", has: (run) => "compare.json" in run.documents, show: showComparison },
  { key: "goodput", title: "Goodput", has: (run) => "goodput.json" in run.documents, show: showGoodput },
];

const state = { run: null, view: null, plan: null, runs: [], listing: null, turn: 0 };
let list, main;

export async function render() {
  document.head.append(
    el("link", { rel: "stylesheet", href: "style.css" }),
    el("meta", { name: "viewport", content: "width=device-width" }),
  );
  document.documentElement.lang = "en";
  followTheme();
  list = new RunList((name) => go({ run: name, view: null, plan: null }));
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
  if (asked && asked !== kept.run) return { run: asked, view: null, plan: null };
  return { run: kept.run ?? null, view: kept.view ?? null, plan: kept.plan ?? null };
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
  const possible = VIEWS.filter((view) => view.has(state.run));
  const view = possible.find((one) => one.key === state.view) ?? possible[0];
  state.view = view?.key ?? null;
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ run: state.run.name, view: state.view, plan: state.plan }));
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
    if (view) await view.show(into, state.run);
    else into.append(notice("This run folder holds nothing that this tab draws."));
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
            onclick: () => go({ view: view.key }),
          },
          view.title,
        ),
      ),
    ),
  );
}

/** The plan view with a choice of the run's plans. */
async function showOne(into, run) {
  const names = planNames(run),
    name = names.includes(state.plan) ? state.plan : names[0];
  if (names.length > 1) {
    into.append(
      el(
        "label",
        { class: "controls" },
        "plan ",
        el(
          "select",
          { id: "plan", onchange: (event) => go({ plan: event.target.value }) },
          names.map((one) =>
            el("option", { value: one, selected: one === name }, one === "plan.json" ? "plan.json (the best)" : one),
          ),
        ),
      ),
    );
  }
  await showPlan(into, run, name);
}
