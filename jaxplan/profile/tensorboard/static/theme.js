// Light or dark, as TensorBoard around this tab is; drawings ask for colours by name.
const listeners = new Set();

function dark() {
  try {
    const body = window.parent.document.body;
    if (window.parent !== window && body) return body.classList.contains("dark-mode");
  } catch {
    // another origin around us: the system's wish decides
  }
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

function apply() {
  document.documentElement.classList.toggle("dark", dark());
  for (const listener of listeners) listener();
}

/** Follows TensorBoard's switch. */
export function followTheme() {
  apply();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  try {
    if (window.parent !== window)
      new MutationObserver(apply).observe(window.parent.document.body, { attributeFilter: ["class"] });
  } catch {
    // as above
  }
}

/** Calls `redraw` when the colours change, as long as `node` is shown. */
export function onTheme(node, redraw) {
  const listener = () => (node.isConnected ? redraw() : listeners.delete(listener));
  listeners.add(listener);
}

/** The colour of a name of the style sheet. */
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const NAMED = new Set([
  "data",
  "fsdp",
  "tensor",
  "context",
  "expert",
  "stage",
  "group",
  "compute",
  "copies",
  "host",
  "params",
  "optimizer",
  "gradients",
  "activations",
  "workspace",
  "batch",
  "matmul",
  "attention",
  "memory-bound",
  "recompute",
  "lookup",
]);

/** The name of the colour of an axis, a kind of work or a kind of memory; `exposed fsdp all-gather` has fsdp's. */
export function colorName(text) {
  const words = String(text).split(/[\s+]+/);
  return NAMED.has(text)
    ? text
    : (words.find((word) => NAMED.has(word)) ?? (words.includes("bubble") ? "stage" : "other"));
}
