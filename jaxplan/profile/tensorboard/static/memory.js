// The memory ledger: what fills a device at the peak, against what there is.
import { el, known, svg } from "./dom.js";
import { percent, share, unitFor } from "./format.js";
import { card, notice, source, table } from "./parts.js";
import { colorName } from "./theme.js";

const WORDS = {
  params: "parameters (this device's part)",
  optimizer: "state of the optimizer",
  gradients: "gradients",
  activations: "kept for the backward pass",
  workspace: "what operations need while they run",
  batch: "the batch",
};
const WIDTH = 1000,
  BAR = 46,
  TOP = 24,
  HEIGHT = 92;

export function memoryCard({ memory, buffers }) {
  if (!memory) return notice("This plan has no memory ledger.");
  const parts = [...memory.parts].sort((a, b) => b.bytes - a.bytes);
  const size = unitFor("bytes", [memory.total, memory.capacity]);
  const rows = parts.map((part) => [
    swatch(part.name),
    part.name,
    WORDS[part.name] ?? "",
    size.of(part.bytes),
    share(part.bytes / memory.total),
    source(part.source),
  ]);
  rows.push([
    "",
    el("b", {}, "total"),
    known(memory.capacity) ? `a device has ${size.full(memory.capacity)}` : "",
    el("b", {}, size.of(memory.total)),
    "100%",
    source(memory.source),
  ]);
  const when = memory.moment ? ` At the peak: ${memory.moment.at} (${memory.moment.source}).` : "";
  return card(
    "memory",
    "Where the memory goes",
    `One device at the moment when it holds the most.${when}`,
    bar(memory, parts, size),
    table(["", "", "", size.unit, "share", "source"], rows, [3, 4]),
    tiers(memory.tiers, size),
    largest(buffers),
  );
}

export const swatch = (name) => el("i", { class: "swatch", style: `background:var(--${colorName(name)})` });

function bar(memory, parts, size) {
  const full = Math.max(memory.total, memory.capacity ?? 0) * 1.02,
    at = (value) => (WIDTH * value) / full;
  let x = 0;
  const rects = parts.map((part) => {
    const width = at(part.bytes),
      left = x;
    x += width;
    return svg(
      "g",
      {},
      svg("title", {}, `${part.name}: ${size.full(part.bytes)} (${part.source})`),
      svg("rect", {
        x: left,
        y: TOP,
        width: Math.max(0, width - 1),
        height: BAR,
        fill: `var(--${colorName(part.name)})`,
      }),
      width > 95
        ? svg("text", { class: "on-color", x: left + 8, y: TOP + BAR / 2 + 5 }, `${part.name} ${size.of(part.bytes)}`)
        : null,
    );
  });
  const limit = known(memory.capacity) ? at(memory.capacity) : null;
  return svg(
    "svg",
    {
      class: "wide",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `memory: ${size.full(memory.total)} of ${size.full(memory.capacity)}`,
    },
    svg("rect", { class: "room", x: 0, y: TOP, width: limit ?? WIDTH, height: BAR }),
    rects,
    limit === null
      ? null
      : [
          svg("line", { class: "limit", x1: limit, x2: limit, y1: TOP - 8, y2: TOP + BAR + 8 }),
          svg(
            "text",
            { class: "limit-name", x: limit - 6, y: TOP - 9, "text-anchor": "end" },
            `capacity ${size.full(memory.capacity)}`,
          ),
          svg(
            "text",
            { class: "tick", x: at(memory.total) - 6, y: TOP + BAR + 17, "text-anchor": "end" },
            `${size.full(memory.total)}, ${percent(memory.total / memory.capacity)} of it`,
          ),
        ],
  );
}

/** The same total as each tier knew it. */
export function tiers(found, unit) {
  const said = Object.entries(found ?? {});
  if (said.length < 2) return null;
  return el(
    "p",
    { class: "help" },
    "As each tier knew it: ",
    said.flatMap(([word, value], i) => [i ? ", " : "", `${unit.full(value)} `, source(word)]),
  );
}

function largest(found) {
  if (!found?.buffers?.length) return null;
  const size = unitFor(
    "bytes",
    found.buffers.map((buffer) => buffer.nbytes),
  );
  const rows = found.buffers.map((buffer) => [
    size.of(buffer.nbytes),
    buffer.shape,
    buffer.kind,
    el("span", { class: "path", title: buffer.name }, buffer.name),
  ]);
  return el(
    "details",
    {},
    el("summary", {}, `The ${rows.length} largest arrays at the peak `, source(found.source)),
    table([size.unit, "shape", "kind", "made by"], rows, [0]),
  );
}
