// A canvas as sharp as the screen, redrawn when its width or the colours change, and a box that follows the pointer.
import { el } from "./dom.js";
import { onTheme } from "./theme.js";

/** {node, draw()}: calls `paint(context, width, height)` in CSS pixels. */
export function canvas(height, label, paint) {
  const surface = el("canvas", { role: "img", "aria-label": label, tabindex: 0 });
  const node = el("div", { class: "canvas", style: `height:${height}px` }, surface);
  const draw = () => {
    const width = node.clientWidth,
      sharp = window.devicePixelRatio || 1;
    if (!width) return;
    if (surface.width !== Math.round(width * sharp) || surface.height !== Math.round(height * sharp)) {
      surface.width = Math.round(width * sharp);
      surface.height = Math.round(height * sharp);
    }
    const context = surface.getContext("2d");
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    paint(context, width, height);
  };
  new ResizeObserver(draw).observe(node);
  onTheme(node, draw);
  return { node, surface, draw };
}

/** Shows lines of text beside the pointer; `hide()` when there is nothing to tell. */
export function tooltip(parent) {
  const box = el("div", { class: "tooltip", hidden: true });
  parent.append(box);
  return {
    show(x, y, lines) {
      box.replaceChildren(...lines.map((line, i) => el(i ? "div" : "b", {}, line)));
      box.hidden = false;
      const room = parent.clientWidth;
      box.style.left = `${x + box.offsetWidth + 24 > room ? Math.max(0, x - box.offsetWidth - 12) : x + 14}px`;
      box.style.top = `${y + 12}px`;
    },
    hide() {
      box.hidden = true;
    },
  };
}
