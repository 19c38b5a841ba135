// Renders a view: `h` describes an element, and `render` changes the document to match the description.
// Text is always a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";
const described = Symbol("description");

/** Describes an element. `key` in props identifies it among its siblings. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flatten(children) };
}

function flatten(children, found = []) {
  for (const child of children) {
    if (Array.isArray(child)) flatten(child, found);
    else if (isGiven(child) && child !== true) found.push(child);
  }
  return found;
}

const isGiven = (value) => value !== null && value !== undefined && value !== false;

/** Makes the children of an element match the descriptions. Elements that stay keep focus, scroll position and input. */
export function render(parent, ...children) {
  patchChildren(parent, flatten(children), parent.namespaceURI === SVG);
}

function patchChildren(parent, wanted, inSvg) {
  const keyed = new Map();
  for (let node = parent.firstChild; node; node = node.nextSibling) {
    const key = node[described]?.props?.key;
    if (key !== undefined) keyed.set(key, node);
  }
  let next = parent.firstChild;
  for (const child of wanted) {
    const key = child.props?.key;
    let node = key === undefined ? next : keyed.get(key);
    if (key === undefined && node?.[described]?.props?.key !== undefined) node = undefined;
    if (node && !isSame(node, child)) node = undefined;
    if (!node) {
      node = create(child, inSvg);
      parent.insertBefore(node, next);
    } else {
      if (node === next) next = next.nextSibling;
      else parent.insertBefore(node, next);
      patch(node, child);
    }
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

function isSame(node, child) {
  if (child.tag === undefined) return node.nodeType === Node.TEXT_NODE;
  return node[described]?.tag === child.tag;
}

function create(child, inSvg) {
  if (child.tag === undefined) return document.createTextNode(child);
  const isSvg = inSvg || child.tag === "svg";
  const node = isSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  node[described] = child;
  // Much faster than `patch`, because there is nothing to compare.
  if (!child.tag.includes("-")) for (const each of child.children) node.append(create(each, isSvg));
  for (const name in child.props) if (isGiven(child.props[name])) setProp(node, name, child.props[name]);
  return node;
}

function patch(node, child) {
  if (child.tag === undefined) {
    if (node.data !== String(child)) node.data = child;
    return;
  }
  const before = node[described];
  if (before === child) return;
  node[described] = child;
  const old = before?.props ?? {};
  for (const name in old) if (!(name in child.props)) setProp(node, name, undefined);
  if (!child.tag.includes("-")) patchChildren(node, child.children, node.namespaceURI === SVG);
  // After the children: a select needs its options before its value.
  for (const name in child.props) if (child.props[name] !== old[name]) setProp(node, name, child.props[name]);
}

function setProp(node, name, value) {
  if (name === "key") return;
  if (name.startsWith(".")) node[name.slice(1)] = value;
  else if (name.startsWith("on")) node[name] = value ?? null;
  else if (name === "value" || name === "checked") node[name] = value ?? (name === "checked" ? false : "");
  else if (!isGiven(value)) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}
