// Figures as text: three significant digits, one unit for a whole column.
import { known } from "./dom.js";

const UNITS = {
  seconds: [
    ["s", 1],
    ["ms", 1e-3],
    ["µs", 1e-6],
    ["ns", 1e-9],
  ],
  bytes: [
    ["TiB", 2 ** 40],
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
    ["B", 1],
  ],
  rate: [
    ["TB/s", 1e12],
    ["GB/s", 1e9],
    ["MB/s", 1e6],
    ["B/s", 1],
  ],
  flops: [
    ["EFLOP", 1e18],
    ["PFLOP", 1e15],
    ["TFLOP", 1e12],
    ["GFLOP", 1e9],
    ["MFLOP", 1e6],
    ["FLOP", 1],
  ],
  flopRate: [
    ["PFLOP/s", 1e15],
    ["TFLOP/s", 1e12],
    ["GFLOP/s", 1e9],
    ["MFLOP/s", 1e6],
    ["FLOP/s", 1],
  ],
  days: [
    ["days", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ],
};
const NOTHING = "–";

/** `value` with three significant digits and no exponent (12.3, 1,230, 0.0123). */
export function significant(value, digits = 3) {
  if (!known(value)) return NOTHING;
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(decimals, 20),
    maximumFractionDigits: Math.min(decimals, 20),
  });
}

/** The unit in which the largest of the values is at least 1: {unit, size, of(value), full(value)}. */
export function unitFor(kind, values) {
  const largest = values.reduce((most, value) => (known(value) ? Math.max(most, Math.abs(value)) : most), 0);
  const units = UNITS[kind];
  const [unit, size] =
    units.find(([, at]) => largest >= at) ?? (largest === 0 ? units.find(([, at]) => at === 1) : units.at(-1));
  const of = (value) => significant(known(value) ? value / size : value);
  return { unit, size, of, full: (value) => (known(value) ? `${of(value)} ${unit}` : NOTHING) };
}

const one = (kind) => (value) => unitFor(kind, [value]).full(value);
export const seconds = one("seconds");
export const bytes = one("bytes");
export const rate = one("rate");
export const flops = one("flops");
export const flopRate = one("flopRate");
export const duration = one("days");

/** A whole number with separators. */
export const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : NOTHING);

/** A large count in words (8.03 B, 4.19 M, 512). */
export function quantity(value) {
  const [word, size] =
    [
      ["T", 1e12],
      ["B", 1e9],
      ["M", 1e6],
    ].find(([, at]) => Math.abs(value) >= at) ?? [];
  return word ? `${significant(value / size)} ${word}` : count(value);
}

/** A share of a whole; too little to matter is said so. */
export const share = (value) => (known(value) && value > 0 && value < 1e-3 ? "<0.1%" : percent(value));

/** A share of one (0.4431: 44.3%). */
export const percent = (value, digits = 3) => (known(value) ? `${significant(100 * value, digits)}%` : NOTHING);

/** A change with its sign. */
export const signed = (write) => (value) =>
  known(value) ? `${value < 0 ? "−" : "+"}${write(Math.abs(value))}` : NOTHING;

/** When, in the reader's own time zone; the year only where it is another than now. */
export function moment(secondsSinceEpoch) {
  const when = new Date(1000 * secondsSinceEpoch);
  const year = when.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  return when.toLocaleString("en-GB", { day: "numeric", month: "short", year, hour: "2-digit", minute: "2-digit" });
}

/** `fsdp=8 tensor=2` of the axes that are larger than 1. */
export function meshWords(mesh) {
  const words = Object.entries(mesh ?? {})
    .filter(([, size]) => size > 1)
    .map(([axis, size]) => `${axis}=${size}`);
  return words.join(" ") || "one device";
}

/** What a plan decides besides mesh, remat and microbatches, in the words of the search's table. */
export function optionWords(plan) {
  const mesh = plan.mesh ?? {};
  return [
    plan.zero2 ? "zero2" : plan.zero1 ? "zero1" : "",
    mesh.context > 1 ? plan.context_attention : "",
    mesh.stage > 1 ? plan.schedule + (plan.repeats > 1 ? ` x${plan.repeats}` : "") : "",
    plan.offload_optimizer ? "offload" : "",
    (mesh.tensor > 1 || mesh.group > 1) && plan.sequence_sharding === false ? "whole-seq" : "",
  ]
    .filter(Boolean)
    .join(" ");
}
