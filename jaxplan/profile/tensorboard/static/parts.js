// The small parts that every view is made of.
import { el } from "./dom.js";

const SOURCES = {
  estimated: "estimated: a formula over the traced program; nothing was compiled",
  partitioned: "partitioned: the host's XLA partitioner proved arguments and collectives",
  compiled: "compiled: read off what the target's own compiler made; nothing ran",
  measured: "measured: a run on devices",
  published: "published: somebody else's measurement",
  refused: "refused: the compiler does not take this plan",
};

/** How a figure is known. */
export function source(word) {
  if (!word) return null;
  const known = word in SOURCES;
  return el("span", { class: `source ${known ? word : ""}`, title: SOURCES[word] ?? word }, word);
}

/** A titled section with one sentence of help under its title. */
export function card(id, title, help, ...children) {
  return el(
    "section",
    { class: "card", id },
    el("h2", {}, title),
    help ? el("p", { class: "help" }, help) : null,
    ...children,
  );
}

/** One line that must be read. */
export function notice(text, kind = "note") {
  return el("p", { class: `notice ${kind}`, role: kind === "fault" ? "alert" : "status" }, text);
}

/** A headline figure. */
export function figure(label, value, word, detail) {
  return el(
    "div",
    { class: "figure" },
    el("div", { class: "label" }, label),
    el("div", { class: "value" }, value),
    el("div", { class: "detail" }, source(word), detail ? ` ${detail}` : null),
  );
}

/** A plain table; `numeric` are the columns that are right-aligned. */
export function table(heads, rows, numeric = [], caption = null) {
  const kind = (i) => (numeric.includes(i) ? "number" : null);
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      caption ? el("caption", {}, caption) : null,
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head, i) => el("th", { class: kind(i), scope: "col" }, head)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell, i) => el("td", { class: kind(i) }, cell)),
          ),
        ),
      ),
    ),
  );
}

/** What the colours of a drawing mean. */
export function legend(entries) {
  return el(
    "div",
    { class: "legend" },
    entries.map(([name, style]) => el("span", {}, el("i", { class: "swatch", style }), name)),
  );
}
