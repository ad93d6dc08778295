// What each mesh axis moves, over which links, and how much of it the step waits for.
import { el, known } from "./dom.js";
import { bytes, count, percent, rate, seconds, unitFor } from "./format.js";
import { card, source, table } from "./parts.js";

export function axesCard(explain) {
  if (!explain?.axes?.length) return null;
  return card(
    "axes",
    "What each axis moves",
    "For every axis of the mesh: its links, what it splits, and its collectives in one step. Exposed is what devices wait for.",
    explain.axes.map(axis),
    host(explain.host),
  );
}

function axis(found) {
  const { links } = found,
    splits = split(found.shards);
  const words = `${links.medium} · ${rate(links.bytes_per_s)}${known(links.fraction) && links.fraction < 1 ? `, ${percent(links.fraction)} of it reached` : ""} · ${seconds(links.latency_s)} to start${links.crosses_network ? " · crosses the network" : ""}`;
  return el(
    "div",
    { class: "axis" },
    el(
      "h3",
      {},
      el("i", { class: "swatch", style: `background:var(--${found.role in COLORS ? found.role : "other"})` }),
      `${found.axis} = ${found.size}`,
    ),
    el("p", { class: "help" }, words),
    el("p", {}, splits),
    estimated(found.estimated?.collectives ?? []),
    compiled(found.compiled),
    elsewhere(found.elsewhere),
  );
}

const COLORS = { data: 1, fsdp: 1, tensor: 1, group: 1, context: 1, expert: 1, stage: 1 };

function split(shards) {
  if (!shards) return "";
  const parts = [
    ["weights", shards.weights, shards.weights_share],
    ["the optimizer’s state", shards.optimizer, shards.optimizer_share],
    ["activations", shards.activations],
  ];
  const found = parts
    .filter(([, dims]) => dims?.length)
    .map(([what, dims, share]) => `${what} by ${dims.join(", ")}${known(share) ? ` (${percent(share)} of them)` : ""}`);
  return found.length ? `Splits ${found.join("; ")}.` : "Splits nothing.";
}

const together = (entry, name) => (entry.axes.length > 1 ? `${name} (with ${entry.axes.join(", ")})` : name);

function estimated(collectives) {
  if (!collectives.length) return null;
  const time = unitFor(
      "seconds",
      collectives.map((one) => one.seconds),
    ),
    size = unitFor(
      "bytes",
      collectives.map((one) => one.nbytes),
    );
  const rows = collectives.map((one) => [
    together(one, one.kind),
    one.what,
    count(one.executions),
    size.of(one.nbytes),
    time.of(one.seconds),
    time.of(one.exposed_s),
  ]);
  return table(
    ["collective", "of", "times", size.unit, `takes, ${time.unit}`, `exposed, ${time.unit}`],
    rows,
    [2, 3, 4, 5],
    source("estimated"),
  );
}

function compiled(traffic) {
  if (!traffic?.length) return null;
  const time = unitFor(
      "seconds",
      traffic.map((one) => one.seconds),
    ),
    size = unitFor(
      "bytes",
      traffic.map((one) => one.nbytes),
    );
  const rows = traffic.map((one) => [
    together(one, one.kind),
    count(one.count),
    count(one.executions),
    size.of(one.nbytes),
    time.of(one.seconds),
  ]);
  return table(
    ["collective", "instructions", "times", size.unit, `takes, ${time.unit}`],
    rows,
    [1, 2, 3, 4],
    source("compiled"),
  );
}

function elsewhere(trades) {
  if (!trades?.length) return null;
  return el(
    "p",
    { class: "help" },
    "On other links: ",
    trades
      .map(
        (trade) =>
          `in place of ${trade.in_place_of} (${trade.links.medium}) the step takes ${seconds(trade.step_time_s)}`,
      )
      .join("; "),
    " ",
    source("estimated"),
  );
}

function host(found) {
  if (!found) return null;
  const rows = found.copies.map((copy) => [
    copy.kind,
    copy.what,
    bytes(copy.nbytes),
    seconds(copy.seconds),
    seconds(copy.exposed_s),
  ]);
  return el(
    "div",
    { class: "axis" },
    el("h3", {}, "Host memory"),
    el("p", { class: "help" }, rate(found.bytes_per_s), " ", source(found.source)),
    table(["copy", "of", "size", "takes", "exposed"], rows, [2, 3, 4]),
  );
}
