// The list of runs: newest first, what each holds, found by words.
import { namesOf } from "./documents.js";
import { el, known } from "./dom.js";
import { moment, seconds } from "./format.js";
import { notice, source } from "./parts.js";

const ROW = 92,
  SPARE = 5;
const HOLDS = [
  ["search", "search"],
  ["plan", "plan"],
  ["timeline", "timeline"],
  ["check", "check"],
  ["measured", "run"],
  ["compare", "compare"],
  ["goodput", "goodput"],
  ["sizes", "choice"],
];

/** A list of which only what is in sight exists: thousands of runs are no more work than ten. */
export class RunList {
  constructor(onPick) {
    this.onPick = onPick;
    this.runs = [];
    this.shown = [];
    this.picked = null;
    this.search = el("input", {
      type: "search",
      id: "find-run",
      placeholder: "find: model, machine, date",
      "aria-label": "find runs",
      oninput: () => this.#filter(),
    });
    this.items = el("div", { class: "items" });
    this.window = el("div", { class: "runs", onscroll: () => this.#paint() }, this.items);
    this.said = el("p", { class: "help", role: "status" });
    this.node = el("nav", { "aria-label": "runs" }, el("h1", {}, "Runs"), this.search, this.said, this.window);
    new ResizeObserver(() => this.#paint()).observe(this.window);
  }

  show({ runs, whole }) {
    this.runs = runs.map((run) => ({
      ...run,
      words: [run.name, moment(run.modified_s), ...Object.values(run.summary), ...Object.keys(run.documents)]
        .join(" ")
        .toLowerCase(),
    }));
    this.whole = whole;
    this.#filter(false);
  }

  pick(name) {
    this.picked = name;
    this.#paint();
  }

  #filter(rewind = true) {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.runs.filter((run) => words.every((word) => run.words.includes(word)));
    this.said.textContent = `${this.shown.length === this.runs.length ? "" : `${this.shown.length} of `}${this.runs.length} run${this.runs.length === 1 ? "" : "s"}${this.whole ? "" : "; the log directory is too large, not all of it was looked at"}`;
    if (rewind) this.window.scrollTop = 0;
    this.items.style.height = `${this.shown.length * ROW}px`;
    this.#paint();
  }

  #paint() {
    const first = Math.max(0, Math.floor(this.window.scrollTop / ROW) - SPARE),
      last = Math.min(this.shown.length, first + Math.ceil(this.window.clientHeight / ROW) + 2 * SPARE);
    this.items.replaceChildren(...this.shown.slice(first, last).map((run, i) => this.#item(run, first + i)));
  }

  #item(run, place) {
    const { summary } = run,
      holds = HOLDS.filter(([, kind]) => namesOf(run, kind).length).map(([word]) =>
        el("span", { class: "badge" }, word),
      );
    return el(
      "button",
      {
        type: "button",
        class: "run",
        style: `top:${place * ROW}px;height:${ROW - 6}px`,
        "data-run": run.name,
        "aria-current": run.name === this.picked ? "true" : null,
        onclick: () => this.onPick(run.name),
      },
      el(
        "span",
        { class: "run-name" },
        run.name === "." ? "(log directory)" : run.name,
        el("time", {}, moment(run.modified_s)),
      ),
      el("span", { class: "run-what" }, [summary.model, summary.machine].filter(Boolean).join(" on ") || "no summary"),
      el(
        "span",
        { class: "run-best" },
        known(summary.step_time_s)
          ? [`${summary.label} ${seconds(summary.step_time_s)} `, source(summary.source)]
          : "–",
      ),
      el("span", { class: "run-holds" }, holds),
    );
  }
}

/** What to do in a log directory that holds nothing for this tab. */
export function emptyMessage(logdir) {
  const where = logdir ? `in ${logdir}` : "here: this tab reads local directories given by --logdir";
  return el(
    "div",
    { class: "empty" },
    el("h2", {}, "No plans yet"),
    notice(`There are no run folders ${where}.`),
    el("p", {}, "A search makes one:"),
    el("pre", {}, "python -m jaxplan search --mesh 8x16\ntensorboard --logdir jaxplan-runs"),
  );
}
