// A document as it is, for what has no drawing of its own.
import { el, known } from "./dom.js";
import { significant } from "./format.js";
import { card } from "./parts.js";

export function documentTree(title, found) {
  return card("document", title, "", branch(found));
}

function branch(value) {
  if (known(value)) return el("span", {}, significant(value, 6));
  if (value === null || typeof value !== "object") return el("span", {}, String(value));
  const entries = Object.entries(value).slice(0, 200);
  return el(
    "dl",
    { class: "tree" },
    entries.flatMap(([key, one]) => [el("dt", {}, key), el("dd", {}, branch(one))]),
  );
}
