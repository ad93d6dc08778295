// The server's answers. Whatever is wrong with a document becomes one line that says what and what to do.

/** A fault that is told to the reader as it is. */
export class Fault extends Error {}

async function get(path, parameters = {}) {
  const url = new URL(path, document.baseURI);
  url.search = new URLSearchParams(parameters).toString();
  let answer;
  try {
    answer = await fetch(url);
  } catch {
    throw new Fault("TensorBoard does not answer. Is it still running?");
  }
  const text = await answer.text();
  if (answer.ok) return text;
  let told;
  try {
    told = JSON.parse(text).error;
  } catch {
    told = `${path}: HTTP ${answer.status}`;
  }
  throw new Fault(told);
}

/** {logdir, whole, runs: [{name, modified_s, documents: {name: bytes}, sessions, summary}]}, newest first. */
export async function listRuns() {
  return JSON.parse(await get("runs"));
}

/** Where a plan's mesh lies on its machine. */
export async function placement(run, name) {
  return JSON.parse(await get("placement", { run: run.name, name }));
}

/** Names of a run's documents of a kind, the first, second, ... plan's in this order: plan.json, plan-2.json, ... */
export function namesOf(run, kind) {
  const number = (name) => Number(name.match(/\d+/)?.[0] ?? 1);
  const found = Object.keys(run.documents).filter((name) => name.match(/^[a-z]+/)[0] === kind);
  return found.sort((a, b) => number(a) - number(b));
}

/** A document of a run, or null where the run has none of that name. */
export async function load(run, name) {
  if (!(name in run.documents)) return null;
  const text = await get("document", { run: run.name, name });
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Fault(
      `${name} of ${run.name} is not whole JSON (${error.message}). It is being written or was cut off: the command that wrote it writes it again.`,
    );
  }
  const expected = `jaxplan.${name.match(/^[a-z]+/)[0]}/1`;
  if (found?.schema !== expected) {
    throw new Fault(
      `${name} of ${run.name} has schema ${JSON.stringify(found?.schema ?? null)}; this tab reads ${expected}. Another version of jaxplan wrote it.`,
    );
  }
  return found;
}

/** Several documents at once: {name: document | null}, and the faults of those that could not be read. */
export async function loadAll(run, names) {
  const found = {},
    faults = [];
  await Promise.all(
    names.map(async (name) => {
      try {
        found[name] = await load(run, name);
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        found[name] = null;
        faults.push(error.message);
      }
    }),
  );
  return { found, faults };
}
