// Elements out of data. Texts become text nodes, so that nothing in a document can become markup.
const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `on...` attributes are listeners, null and false attributes and children are left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A number that is one: JSON has null where a figure is missing. */
export const known = (value) => typeof value === "number" && Number.isFinite(value);
