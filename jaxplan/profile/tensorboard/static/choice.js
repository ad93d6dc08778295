// Sizes of the machine beside each other: days, money, goodput.
import { load } from "./documents.js";
import { el, known } from "./dom.js";
import { count, duration, percent, quantity, seconds, significant } from "./format.js";
import { lineChart } from "./line_chart.js";
import { card, figure, notice, source, table } from "./parts.js";

export async function showChoice(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  const named = (mesh) => found.options.find((option) => option.mesh === mesh);
  const cheapest = named(found.cheapest),
    fastest = named(found.fastest);
  into.append(
    el(
      "h2",
      { class: "plan-title" },
      "Which machine",
      el(
        "span",
        {},
        ` · ${quantity(found.tokens)} tokens${known(found.deadline_s) ? ` in ${duration(found.deadline_s)}` : ""}`,
      ),
    ),
    el(
      "div",
      { class: "figures" },
      cheapest ? figure("cheapest", cheapest.name, found.source, words(cheapest)) : null,
      fastest ? figure("fastest", fastest.name, found.source, words(fastest)) : null,
    ),
    cheapest || fastest ? "" : notice("No size is in time and in the budget.", "fault"),
    options(found),
    refused(found.refused) ?? "",
    card(
      "inputs",
      "What was assumed",
      "",
      el(
        "ul",
        {},
        (found.assumptions ?? []).map((line) => el("li", {}, line)),
      ),
    ),
  );
}

const words = (option) =>
  `${significant(option.days.value)} days${known(option.money) ? `, ${significant(option.money)}` : ""}`;

function options({ options: found, source: word }) {
  const money = found.some((option) => known(option.money)),
    cost = (option) => (money ? option.money : option.chip_hours);
  const [scaleName, scale] = Math.max(...found.map(cost)) >= 1e6 ? ["millions", 1e6] : ["thousands", 1e3];
  const front = found.filter((option) => option.on_front).sort((a, b) => a.days.value - b.days.value);
  const points = (list) => list.map((option) => [option.days.value, cost(option) / scale]);
  const rows = found.map((option) => [
    el("b", {}, option.name),
    count(option.chips),
    count(option.spare_chips),
    seconds(option.step_time_s.value),
    percent(option.goodput),
    significant(option.days.value),
    `${significant(option.days.low)} to ${significant(option.days.high)}`,
    significant(cost(option)),
    option.on_front ? "yes" : "",
    option.allowed ? "" : "too late or too dear",
  ]);
  return card(
    "options",
    "Sizes",
    "On the line no size is both faster and cheaper.",
    lineChart({
      label: "cost over days",
      xName: "days",
      yName: money ? `money, ${scaleName}` : `chip-hours, ${scaleName}`,
      logX: true,
      series: [
        { name: "sizes", color: "accent", points: points(found), dots: true, scattered: true },
        { name: "best trade-offs", color: "front", points: points(front) },
      ],
    }),
    table(
      [
        "size",
        "chips",
        "spare",
        "step",
        "goodput",
        "days",
        "bounds",
        money ? "money" : "chip-hours",
        "best trade-off",
        "",
      ],
      rows,
      [1, 2, 3, 4, 5, 6, 7],
      source(word),
    ),
  );
}

function refused(found) {
  if (!found?.length) return null;
  return card(
    "refused",
    "Sizes that no plan fits",
    "",
    table(
      ["size", "why"],
      found.map((one) => [one.name, one.why]),
    ),
  );
}
