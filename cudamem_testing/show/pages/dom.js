// Elements by hand: every text becomes a text node, so nothing of a test is ever read as HTML.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, options, children) {
  for (const [name, value] of Object.entries(options || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [property, one] of Object.entries(value)) element.style.setProperty(property, one);
    else if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

function h(name, options, ...children) {
  const [tag, ...kinds] = name.split(".");
  const element = document.createElement(tag || "div");
  if (kinds.length) element.className = kinds.join(" ");
  return fill(element, options, children);
}

function s(name, options, ...children) {
  const [tag, ...kinds] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (kinds.length) element.setAttribute("class", kinds.join(" "));
  return fill(element, options, children);
}

// At most so many characters: the middle gives way, the end keeps most of the room.
function elide(text, most) {
  if (text.length <= most) return text;
  const tail = Math.floor(((most - 1) * 2) / 3);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

const say = (text) => {
  let live = document.getElementById("said");
  if (!live) document.body.append((live = h("p.hidden", { id: "said", role: "status", "aria-live": "polite" })));
  live.textContent = text;
};

// Calls draw(width) now and whenever the width of the element changes; the element empties when it leaves the page.
function drawn(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== last) draw((last = width));
  }).observe(element);
  return element;
}
