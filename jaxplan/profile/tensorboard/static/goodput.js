// What `goodput` wrote.
import { load } from "./documents.js";
import { documentTree } from "./tree.js";

export async function showGoodput(into, run) {
  const found = await load(run, "goodput.json");
  if (found) into.append(documentTree("Goodput", found));
}
