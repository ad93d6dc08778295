// The machine as chips on their torus or in their hosts, and which of them each mesh axis joins.
import { Fault, placement } from "./documents.js";
import { el, svg } from "./dom.js";
import { count } from "./format.js";
import { card, notice, table } from "./parts.js";

const CELL = 22,
  GAP = 22,
  MOST_CELLS = 4096,
  MOST_PANELS = 64,
  WIDE = 8,
  SMALLEST = 5;

/** A picture for every axis that is larger than 1; the devices of one group are marked, numbered along the axis. */
export async function meshCard(run, name) {
  let placed;
  try {
    placed = await placement(run, name);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return notice(`The mesh cannot be drawn: ${error.message}`, "fault");
  }
  const axes = placed.axes.filter((axis) => axis.size > 1);
  const shape = placed.levels
    .filter((level) => level.length > 1)
    .map((level) => `${level.length} ${level.name}`)
    .join(" × ");
  const rows = placed.axes.map((axis) => [axis.axis, count(axis.size), axis.size > 1 ? axis.links : "–"]);
  return card(
    "mesh",
    "The mesh on the machine",
    `${placed.machine}: ${shape || "one device"}. Coloured: devices that talk to each other over the axis, numbered along it. Point at a device to see its group.`,
    axes.length
      ? el(
          "div",
          { class: "meshes" },
          axes.map((axis) => picture(placed, axis)),
        )
      : el("p", {}, "One device: nothing is split."),
    table(["mesh axis", "size", "lies on"], rows, [1]),
  );
}

function picture(placed, axis) {
  const { levels } = placed,
    layout = layoutOf(placed),
    devices = Math.min(
      layout.cells,
      levels.reduce((product, level) => product * level.length, 1),
    );
  const cell = Math.max(SMALLEST, Math.min(CELL, Math.floor(420 / layout.columns)));
  const cells = Array.from({ length: devices }, (_, index) => deviceAt(levels, index)).map((position) => ({
    position,
    place: layout.at(position, cell),
    ...groupOf(axis, position),
  }));
  const rects = cells.map(({ place, along, group }, i) => {
    const box = svg("rect", { x: place.x, y: place.y, width: cell - 2, height: cell - 2, rx: 2 }),
      text = cell >= 15 ? svg("text", { x: place.x + cell / 2 - 1, y: place.y + cell / 2 + 3 }, String(along)) : null;
    return svg(
      "g",
      { class: "device", "data-group": group, onmouseenter: () => mark(group) },
      svg("title", {}, `device ${i}: ${axis.axis} ${along} of ${axis.size}`),
      box,
      text,
    );
  });
  const mark = (group) => rects.forEach((node) => node.classList.toggle("member", node.dataset.group === group));
  mark(cells[0].group);
  const { width, height } = layout.size(cell);
  const part =
    devices < layout.all
      ? el("figcaption", { class: "help" }, `The first ${count(devices)} of ${count(layout.all)} devices.`)
      : null;
  return el(
    "figure",
    { class: "mesh", style: `--group:var(--${axis.axis},var(--other))` },
    el("figcaption", {}, el("b", {}, `${axis.axis} = ${axis.size}`), ` on ${axis.links}`),
    svg(
      "svg",
      {
        viewBox: `-2 -2 ${width + 4} ${height + 4}`,
        width: width + 4,
        height: height + 4,
        role: "img",
        "aria-label": `${axis.axis} on ${placed.machine}`,
      },
      layout.panels(cell),
      rects,
    ),
    part,
  );
}

/** Coordinates of a device, innermost level first. */
function deviceAt(levels, index) {
  return levels.map(({ length }) => {
    const at = index % length;
    index = Math.floor(index / length);
    return at;
  });
}

/** The place of a device along an axis, and a name of the group with which it shares everything else. */
export function groupOf(axis, position) {
  let along = 0,
    unit = 1;
  const rest = [...position];
  for (const { level, factor, stride } of axis.stretches) {
    const part = Math.floor(position[level] / stride) % factor;
    along += part * unit;
    unit *= factor;
    rest[level] -= part * stride;
  }
  return { along, group: rest.join(",") };
}

/** Where devices are drawn: columns and rows inside of panels (planes of a torus, hosts of a cluster). */
function layoutOf({ kind, levels }) {
  const all = levels.reduce((product, level) => product * level.length, 1);
  const [columns, rows, seat] = kind === "tpu" ? torus(levels) : hosts(levels);
  const wanted = Math.ceil(all / (columns * rows)),
    panels = Math.max(1, Math.min(wanted, MOST_PANELS, Math.floor(MOST_CELLS / (columns * rows)) || 1)),
    across = Math.max(1, Math.min(panels, Math.ceil(Math.sqrt((panels * rows * 1.6) / columns))));
  const top = wanted > 1 ? GAP : 0;
  const corner = (panel, cell) => ({
    x: (panel % across) * (columns * cell + GAP),
    y: top + Math.floor(panel / across) * (rows * cell + GAP),
  });
  return {
    all,
    columns: columns * across,
    cells: panels * columns * rows,
    at: (position, cell) => {
      const { panel, column, row } = seat(position),
        { x, y } = corner(panel, cell);
      return { x: x + column * cell + 1, y: y + row * cell + 1 };
    },
    panels: (cell) =>
      Array.from({ length: panels }, (_, panel) => {
        const { x, y } = corner(panel, cell);
        const name =
          wanted > 1 && columns * cell > 40
            ? svg("text", { class: "panel-name", x, y: y - 5 }, panelName(kind, levels, panel))
            : null;
        return svg(
          "g",
          {},
          svg("rect", { class: "host", x, y, width: columns * cell, height: rows * cell, rx: 3 }),
          name,
        );
      }),
    size: (cell) => ({
      width: across * (columns * cell + GAP) - GAP,
      height: top + Math.ceil(panels / across) * (rows * cell + GAP) - GAP,
    }),
  };
}

function panelName(kind, levels, panel) {
  if (kind !== "tpu") return `domain ${panel}`;
  return deviceAt(levels.slice(3), panel)
    .map((at, i) => `${levels[3 + i].short} ${at}`)
    .join(", ");
}

/** Devices of a chip beside each other along x; y downwards; a panel for every z and slice. */
function torus(levels) {
  const [cores, x, y, ...outer] = levels.map((level) => level.length);
  const seat = ([core, cx, cy, ...others]) => {
    let panel = 0;
    for (let i = outer.length - 1; i >= 0; i--) panel = panel * outer[i] + others[i];
    return { panel, column: cx * cores + core, row: cy ?? 0 };
  };
  return [cores * x, y ?? 1, seat];
}

/** A panel for every domain, its chips in rows of eight. */
function hosts(levels) {
  const chips = levels[0].length,
    columns = Math.min(WIDE, chips);
  return [
    columns,
    Math.ceil(chips / columns),
    ([chip, domain]) => ({ panel: domain, column: chip % columns, row: Math.floor(chip / columns) }),
  ];
}
