// What `compare` wrote.
import { load } from "./documents.js";
import { documentTree } from "./tree.js";

export async function showComparison(into, run) {
  const found = await load(run, "compare.json");
  if (found) into.append(documentTree("Compared", found));
}
