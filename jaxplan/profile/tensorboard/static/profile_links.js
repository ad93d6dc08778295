// Links into TensorBoard's Profile tab. They work under --path_prefix: the tab's own address is …/data/plugin/jaxplan/.
import { el } from "./dom.js";

/** The address at which the Profile tab opens a tool for a session of a run. */
export function profileAddress(run, session, tool) {
  const url = new URL("../../../", document.baseURI);
  url.search = new URLSearchParams({
    run: run.name === "." ? session : `${run.name}/${session}`,
    tag: tool,
  }).toString();
  url.hash = "profile";
  return url.href;
}

const link = (run, session, tool, words) =>
  el("a", { class: "button", target: "_parent", "data-tool": tool, href: profileAddress(run, session, tool) }, words);

/** Buttons for a session that was measured. */
export function measuredLinks(run, session) {
  if (!session || !run.sessions.includes(session)) return null;
  return el(
    "p",
    { class: "links" },
    link(run, session, "trace_viewer@", "Trace viewer (Profile tab)"),
    link(run, session, "memory_viewer", "Memory viewer (Profile tab)"),
    link(run, session, "graph_viewer", "Graph viewer (Profile tab)"),
  );
}

/** Buttons for a program that was compiled and never ran: plan-2.json has the session compiled-plan-2. */
export function compiledLinks(run, planName) {
  const session = `compiled-${planName.replace(/\.json$/, "")}`;
  if (!run.sessions.includes(session)) return null;
  return el(
    "p",
    { class: "links" },
    link(run, session, "memory_viewer", "Memory viewer (Profile tab)"),
    link(run, session, "graph_viewer", "Graph viewer (Profile tab)"),
  );
}
