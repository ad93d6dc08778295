// The plans of a search: what it kept, and every plan that fits.
import { Candidates } from "./candidates.js";
import { Fault, load } from "./documents.js";
import { el } from "./dom.js";
import { bytes, count, meshWords, optionWords, percent, quantity, seconds, share, unitFor } from "./format.js";
import { Grid } from "./grid.js";
import { Pareto } from "./pareto.js";
import { card, legend, notice, source, table } from "./parts.js";

const GRID_HEIGHT = 420,
  TYPING_MS = 60;

/** Fills `into`; `openPlan(name)` is called with a plan's file name. */
export async function showSearch(into, run, openPlan) {
  const search = await load(run, "search.json");
  if (search) into.append(...headline(search), kept(search, openPlan), notes(search));
  const room = el("div", {}, notice("Reading candidates.json …"));
  if ("candidates.json" in run.documents) into.append(room);
  else
    into.append(
      notice(
        "This run has no candidates.json: all plans that fit are listed by searches of newer versions of jaxplan.",
      ),
    );
  await new Promise(requestAnimationFrame);
  const document = await load(run, "candidates.json").catch((error) => told(room, error));
  if (!document) return;
  try {
    room.replaceChildren(allPlans(new Candidates(document), run, openPlan));
    room.querySelector(".window").dispatchEvent(new Event("scroll"));
  } catch (error) {
    told(room, error);
  }
}

function told(room, error) {
  if (!(error instanceof Fault)) throw error;
  room.replaceChildren(notice(error.message, "fault"));
  return null;
}

function headline(search) {
  const { machine, workload, plans = [] } = search,
    model = workload?.model ?? {};
  const memory = machine?.chip ? `${bytes(machine.chip.hbm_bytes)} each` : "";
  const lines = [
    [
      "Machine",
      `${machine?.chip?.name ?? ""} ${(machine?.shape ?? []).join("x") || machine?.name}: ${count(machine?.chips)} chips, ${memory}, ${count(machine?.hosts)} host${machine?.hosts === 1 ? "" : "s"}`,
    ],
    ["Model", `${model.name}, ${quantity(workload?.parameters)} parameters, ${workload?.optimizer}`],
    [
      "Batch",
      `${count(workload?.batch)} × ${count(workload?.seq)} tokens = ${quantity(workload?.batch * workload?.seq)} tokens a step`,
    ],
    [
      "Searched",
      `${count(search.candidates)} plans, ${count(search.feasible)} fit${plans.length && !plans[0].fits ? ": none that was proven; the nearest misses are below" : ""}`,
    ],
  ];
  return [
    el(
      "dl",
      { class: "facts" },
      lines.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]),
    ),
  ];
}

function kept(search, openPlan) {
  const plans = search.plans ?? [];
  const time = unitFor(
    "seconds",
    plans.flatMap((plan) => [plan.step_time_s.value, plan.step_time_s.high]),
  );
  const size = unitFor(
    "bytes",
    plans.map((plan) => plan.memory_bytes.total),
  );
  const best = plans[0]?.step_time_s.value;
  const rows = plans.map((plan) => [
    String(plan.rank),
    el("b", {}, meshWords(plan.mesh)),
    optionWords(plan),
    plan.remat,
    count(plan.microbatches),
    el("span", {}, size.of(plan.memory_bytes.total), " ", source(plan.memory_bytes.source)),
    el("span", {}, time.of(plan.step_time_s.value), " ", source(plan.step_time_s.source)),
    `${time.of(plan.step_time_s.low)} to ${time.of(plan.step_time_s.high)}`,
    plan.rank === 1 ? "" : `+${share(plan.step_time_s.value / best - 1)}`,
    percent(plan.mfu),
    plan.bottleneck,
    plan.plan
      ? el("button", { type: "button", class: "open", onclick: () => openPlan(fileName(plan.plan)) }, "Open")
      : "",
  ]);
  const heads = [
    "#",
    "mesh",
    "options",
    "remat",
    "micro",
    `memory, ${size.unit}`,
    `step time, ${time.unit}`,
    `bounds, ${time.unit}`,
    "over #1",
    "MFU",
    "limited by",
    "",
  ];
  const capacity = plans[0] ? ` A device has ${bytes(plans[0].memory_bytes.capacity)}.` : "";
  return card(
    "kept",
    "The best plans",
    `Fastest first; every figure says how it is known. Bounds: everything that can overlap does, nothing does.${capacity}`,
    plans.length
      ? table(heads, rows, [0, 4, 5, 6, 7, 8, 9])
      : notice("No plan: the search found none that fits, or was stopped before the first."),
  );
}

function notes(search) {
  const why = (search.why ?? []).map(
    (one) =>
      `${one.rival} ${one.axis}: ${seconds(one.slower_s)} slower${one.because ? `, mostly ${one.because}` : ""} (${meshWords(one.mesh)})`,
  );
  const rejected = Object.entries(search.rejected ?? {})
    .sort((a, b) => b[1] - a[1])
    .map(([reason, n]) => `${count(n)}: ${reason}`);
  const fold = (title, lines) =>
    lines.length
      ? el(
          "details",
          {},
          el("summary", {}, title),
          el(
            "ul",
            {},
            lines.map((line) => el("li", {}, line)),
          ),
        )
      : null;
  return el(
    "div",
    {},
    fold("Why #1 has the axes that it has (the best plan otherwise)", why),
    fold("What was not considered", rejected),
    search.stopped ? el("p", { class: "help" }, `Stopped because ${search.stopped}`) : null,
  );
}

const fileName = (path) => path.split(/[\\/]/).at(-1);

/** Every plan that fits: a plot and a table that show the same filter and the same choice. */
function allPlans(candidates, run, openPlan) {
  const state = {
    filter: { text: "", sizes: {}, fits: false, proof: "", remat: "" },
    sorted: "step_time_s",
    descending: false,
  };
  const told = el("span", { class: "help", role: "status", id: "matched" }),
    chosen = el("div", { class: "chosen", role: "status" });
  const choose = (row) => {
    grid.select(row);
    pareto.select(row);
    chosen.replaceChildren(...choice(candidates, run, row, openPlan));
  };
  const grid = new Grid(columnsOf(candidates), GRID_HEIGHT, {
    onSelect: choose,
    onSort: (name) => {
      state.descending = state.sorted === name && !state.descending;
      state.sorted = name;
      grid.show(candidates.select(state.filter, name, state.descending), name, state.descending);
    },
  });
  const pareto = new Pareto(candidates, {
    onSelect: (row) => {
      choose(row);
      grid.select(row, true);
    },
    describe: (row) => words(candidates, row),
  });
  const update = () => {
    const byTime = candidates.select(state.filter);
    pareto.show(byTime);
    const asTable =
      state.sorted === "step_time_s" && !state.descending
        ? byTime
        : candidates.select(state.filter, state.sorted, state.descending);
    grid.show(asTable, state.sorted, state.descending);
    told.textContent = `${count(byTime.length)} of ${count(candidates.count)} plans; ${count(pareto.inside)} in the plot`;
  };
  const reach = el(
    "label",
    {},
    el("input", {
      type: "checkbox",
      id: "reach",
      onchange: (event) => {
        pareto.reach(event.target.checked);
        update();
      },
    }),
    " plot all, not only up to twice the fastest",
  );
  const whole = card(
    "all",
    "Every plan that fits",
    `${count(candidates.considered)} were estimated, ${count(candidates.feasible)} fit${candidates.count < candidates.feasible ? `, the fastest ${count(candidates.count)} are here` : ""}. A point is a plan: left is faster, lower needs less memory. On the line nothing is both faster and smaller.`,
    controls(candidates, state.filter, update),
    el("p", { class: "controls" }, told, reach),
    pareto.node,
    legend([
      ["estimated plan", "background:var(--accent)"],
      ["partitioned", "background:var(--partitioned)"],
      ["compiled (diamond)", "background:var(--compiled);transform:rotate(45deg)"],
      ["best trade-offs", "background:var(--front);height:3px"],
    ]),
    chosen,
    grid.node,
  );
  update();
  return whole;
}

function controls(candidates, filter, update) {
  let waiting;
  const text = el("input", {
    type: "search",
    id: "filter",
    placeholder: "filter: fsdp=8 attention zero1 …",
    "aria-label": "filter plans by words",
    oninput: (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        filter.text = event.target.value;
        update();
      }, TYPING_MS);
    },
  });
  const pick = (name, values, set) =>
    el(
      "label",
      {},
      `${name} `,
      el(
        "select",
        {
          "data-filter": name,
          onchange: (event) => {
            set(event.target.value);
            update();
          },
        },
        el("option", { value: "" }, "any"),
        values.map((value) => el("option", { value }, String(value))),
      ),
    );
  const sizes = candidates.sizes().map(([role, values]) =>
    pick(role, values, (value) => {
      if (value) filter.sizes[role] = Number(value);
      else delete filter.sizes[role];
    }),
  );
  const texts = ["remat", "proof"]
    .filter((name) => candidates.texts[name]?.values.length > 1)
    .map((name) =>
      pick(name, candidates.texts[name].values, (value) => {
        filter[name] = value;
      }),
    );
  const fits = el(
    "label",
    {},
    el("input", {
      type: "checkbox",
      id: "fits",
      onchange: (event) => {
        filter.fits = event.target.checked;
        update();
      },
    }),
    " fits",
  );
  return el("div", { class: "controls" }, text, sizes, texts, fits);
}

function columnsOf(candidates) {
  const number = (name) => candidates.numbers[name] ?? [];
  const time = unitFor("seconds", [number("step_time_s")[0]]),
    size = unitFor("bytes", [number("memory_bytes")[0]]);
  const text = (name, head, width, title) => ({ name, head, width, title, cell: (row) => candidates.text(name, row) });
  const figure = (name, head, width, title, write) => ({
    name,
    head,
    width,
    title,
    numeric: true,
    cell: (row) => write(candidates.number(name, row), row),
  });
  const bounds = (row) => `${time.of(candidates.number("low_s", row))} to ${time.of(candidates.number("high_s", row))}`;
  return [
    text("mesh", "mesh", "18%", "sizes of the mesh's axes"),
    text("options", "options", "10%", "ZeRO, attention over context, pipeline schedule, offloading"),
    text("remat", "remat", "9%", "what the backward pass keeps, and what it computes again"),
    figure("microbatches", "micro", "6%", "microbatches of a step", count),
    figure("memory_bytes", `memory, ${size.unit}`, "10.5%", "of one device, at the peak", size.of),
    figure("step_time_s", `step, ${time.unit}`, "8%", "time of one optimizer step", time.of),
    {
      ...figure(
        "low_s",
        `bounds, ${time.unit}`,
        "13%",
        "everything overlaps, nothing overlaps; sorted by the lower",
        (_, row) => bounds(row),
      ),
    },
    figure("mfu", "MFU", "7%", "model FLOPs over the machine's peak", (value) => percent(value)),
    text("bottleneck", "limited by", "13%", "the largest part of the time"),
    {
      ...text("proof", "source", "10%", "how the figures are known"),
      cell: (row) => source(candidates.text("proof", row) || "estimated"),
    },
  ].filter((column) => column.name in candidates.numbers || column.name in candidates.texts);
}

function words(candidates, row) {
  return [
    [candidates.text("mesh", row), candidates.text("options", row)].filter(Boolean).join(" "),
    `${candidates.text("remat", row)} remat, ${count(candidates.number("microbatches", row))} microbatch${candidates.number("microbatches", row) === 1 ? "" : "es"}`,
    `${seconds(candidates.number("step_time_s", row))} a step, ${bytes(candidates.number("memory_bytes", row))}, MFU ${percent(candidates.number("mfu", row))}`,
    `limited by ${candidates.text("bottleneck", row)}; ${candidates.text("proof", row) || "estimated"}`,
  ];
}

function choice(candidates, run, row, openPlan) {
  const [name, ...rest] = words(candidates, row),
    file = fileName(candidates.text("plan", row) || "");
  const action =
    file in run.documents
      ? el("button", { type: "button", class: "open", onclick: () => openPlan(file) }, "Open this plan")
      : el("span", { class: "help" }, "Only its estimate is kept; the best plans have files of their own.");
  return [el("b", {}, name), el("span", {}, rest.join(" · ")), action];
}
