// Elements of HTML and SVG from a name, attributes and children. Nothing here takes markup as text,
// so what a node or a model says can never become an element.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; attributes that are null or false are left out. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set attributes; those that are null or false are removed. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  return node;
}

/** Set an element's text, if it has changed: a selection in it survives otherwise. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  set(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
