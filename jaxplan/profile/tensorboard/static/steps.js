// The tree of a step: loops are unfolded while they are drawn or searched, only where they are seen.

export const LANE = 0,
  START = 1,
  DURATION = 2,
  NAME = 3,
  KIND = 4,
  EXPOSED = 5;
const MOST = 20000; // events that one loop is unfolded to at once (chosen: some milliseconds of drawing)

/** Events of one execution of a node with everything below it, loops unfolded. */
export function eventsOf(node) {
  node.unfolded ??=
    (node.events?.length ?? 0) +
    (node.children ?? []).reduce((sum, child) => sum + eventsOf(child) * (child.repeats ?? 1), 0);
  return node.unfolded;
}

/** How many loops lie inside of one another. */
export function depthOf(node) {
  return (node.children ?? []).reduce((most, child) => Math.max(most, depthOf(child)), 0) + 1;
}

/** Per lane what one execution of a node is busy and exposed, in seconds: [{busy, exposed, kinds: {kind: busy}}]. */
export function busyOf(node, lanes) {
  if (node.busy) return node.busy;
  const sums = Array.from({ length: lanes }, () => ({ busy: 0, exposed: 0, kinds: {} }));
  for (const event of node.events ?? []) {
    if (!sums[event[LANE]]) continue;
    add(sums[event[LANE]], event[DURATION], event[EXPOSED] ?? 0, { [event[KIND]]: event[DURATION] }, 1);
  }
  for (const child of node.children ?? []) {
    busyOf(child, lanes).forEach(({ busy, exposed, kinds }, lane) =>
      add(sums[lane], busy, exposed, kinds, child.repeats ?? 1),
    );
  }
  node.busy = sums;
  return sums;
}

function add(sum, busy, exposed, kinds, times) {
  sum.busy += busy * times;
  sum.exposed += exposed * times;
  for (const [kind, seconds] of Object.entries(kinds)) sum.kinds[kind] = (sum.kinds[kind] ?? 0) + seconds * times;
}

/**
 * Walks what lies in [from, to] seconds. `finest` is the duration below which one execution of a loop is not worth drawing.
 * visit.event(event, at, path), visit.loop(node, at, depth), visit.folded(node, at, seconds) for loops that stay folded.
 */
export function walk(node, from, to, finest, visit, at = 0, depth = 0, path = []) {
  for (const event of node.events ?? []) {
    const start = at + event[START];
    if (start <= to && start + event[DURATION] >= from) visit.event(event, start, path);
  }
  for (const child of node.children ?? []) {
    const start = at + child.start_s,
      one = child.duration_s,
      whole = one * (child.repeats ?? 1);
    if (start > to || start + whole < from || !(one > 0)) continue;
    visit.loop(child, start, depth);
    const first = Math.max(0, Math.floor((from - start) / one)),
      last = Math.min((child.repeats ?? 1) - 1, Math.floor((to - start) / one));
    if (one < finest || (last - first + 1) * eventsOf(child) > MOST) {
      visit.folded(child, start, whole, path);
      continue;
    }
    for (let i = first; i <= last; i++)
      walk(child, from, to, finest, visit, start + i * one, depth + 1, [...path, { node: child, i }]);
  }
}

/** What happens at a moment in a lane: {event, at, path} or null. */
export function find(node, lane, moment, slack, at = 0, path = []) {
  for (const event of node.events ?? []) {
    const start = at + event[START];
    if (event[LANE] === lane && moment >= start - slack && moment <= start + event[DURATION] + slack)
      return { event, at: start, path };
  }
  for (const child of node.children ?? []) {
    const start = at + child.start_s,
      one = child.duration_s;
    if (moment < start || moment > start + one * (child.repeats ?? 1)) continue;
    const i = Math.min((child.repeats ?? 1) - 1, Math.floor((moment - start) / one));
    const found = find(child, lane, moment, slack, start + i * one, [...path, { node: child, i }]);
    if (found) return found;
  }
  return null;
}
