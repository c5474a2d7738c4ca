// What was live at the peak, by stack: the outermost call above, what it called below it, as wide as its bytes.
const ROW = 24;

function treeOf(curve, frames, stacks, name) {
  const root = { label: name, origin: "root", bytes: 0, blocks: 0, children: new Map(), depth: 0 };
  for (const [size, blocks, owner, origin] of curve.live) {
    root.bytes += size;
    root.blocks += blocks;
    const path = typeof owner === "string" ? [{ label: owner, origin }]
      : [...stacks[owner]].reverse().map((place) => {
        const [file, line, name, kind] = frames[place];
        return { label: `${name || "?"}  ${file}${line ? `:${line}` : ""}`, origin: kind, file };
      });
    let node = root;
    for (const step of path) {
      let child = node.children.get(step.label);
      if (!child) node.children.set(step.label, (child = { ...step, bytes: 0, blocks: 0, children: new Map(), depth: node.depth + 1, parent: node }));
      child.bytes += size;
      child.blocks += blocks;
      node = child;
    }
  }
  return root;
}

// Files of the project have colours of their own; what libraries called stands back.
function frameColour(node, files) {
  if (node.origin === "root") return "var(--calm-soft)";
  if (node.origin === "project") {
    if (!files.has(node.file)) files.set(node.file, files.size);
    return ["#f0b35a", "#f08a5d", "#e6c34a", "#ef9aa2", "#c9c15a", "#e0a37e"][files.get(node.file) % 6];
  }
  if (node.origin === "library" || node.origin === "generated") return "#a9bdd3";
  return "#c5cbd3";
}

function icicle(curve, frames, stacks, name = "live at the peak", whole = "the peak") {
  const root = treeOf(curve, frames, stacks, name);
  const files = new Map();
  const box = h("div.icicle", { role: "group", "aria-label": `${name}, by stack. Arrow keys move, Enter zooms in, Escape zooms out.` });
  const told = h("p.told", { "aria-hidden": "true" });
  let zoomed = root;
  let current = root;
  const byNode = new Map();
  const share = (node) => `${bytes(node.bytes)} in ${count(node.blocks, "block")}, ${percent(node.bytes / (root.bytes || 1))} of ${whole}`;
  const tell = (node) => told.replaceChildren(h("b", {}, share(node)), " ", h("span.code", {}, elide(node.label, 200)));

  function zoom(node) {
    zoomed = current = node;
    draw(box.clientWidth);
    byNode.get(node)?.focus();
    say(`zoomed to ${node.label}: ${share(node)}`);
  }

  function draw(width) {
    byNode.clear();
    const cells = [];
    let deepest = 0;
    const place = (node, left, wide) => {
      deepest = Math.max(deepest, node.depth);
      const cell = h(node.depth < zoomed.depth ? "button.cell.above" : "button.cell", {
        type: "button", tabindex: node === current ? "0" : "-1", "aria-label": `${node.label}: ${share(node)}`,
        style: { left: `${left}px`, width: `${Math.max(1, wide - 1)}px`, top: `${node.depth * ROW}px`, background: frameColour(node, files) },
        on: {
          click: () => zoom(node === zoomed && node.parent ? node.parent : node),
          pointerenter: () => tell(node), focus: () => { current = node; tell(node); },
        },
      }, wide > 26 ? h("span", {}, node.depth ? elide(node.label, 120) : `${node.label}: ${bytes(node.bytes)}`) : "");
      if (node.origin === "root") cell.classList.add("root");
      byNode.set(node, cell);
      cells.push(cell);
    };
    const below = (node, left, wide) => {
      place(node, left, wide);
      let x = left;
      for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        const size = (wide * child.bytes) / (node.bytes || 1);
        if (size >= 1.5) below(child, x, size);
        x += size;
      }
    };
    for (let node = zoomed.parent; node; node = node.parent) place(node, 0, width);
    below(zoomed, 0, width);
    box.style.setProperty("height", `${(deepest + 1) * ROW}px`);
    const focused = box.contains(document.activeElement);
    box.replaceChildren(...cells);
    if (focused) byNode.get(current)?.focus();
    tell(current);
  }

  box.addEventListener("pointerleave", () => tell(current));
  box.addEventListener("keydown", (event) => {
    const ordered = current.parent ? [...current.parent.children.values()].filter((node) => byNode.has(node)).sort((a, b) => b.bytes - a.bytes) : [current];
    const here = ordered.indexOf(current);
    const child = [...current.children.values()].filter((node) => byNode.has(node)).sort((a, b) => b.bytes - a.bytes)[0];
    const next = { ArrowRight: ordered[here + 1], ArrowLeft: ordered[here - 1], ArrowUp: current.parent, ArrowDown: child }[event.key];
    if (event.key === "Escape" && zoomed !== root) {
      event.preventDefault();
      event.stopPropagation();
      zoom(root);
    } else if (next && byNode.has(next)) {
      event.preventDefault();
      byNode.get(current).tabIndex = -1;
      byNode.get(next).tabIndex = 0;
      byNode.get(next).focus();
    }
  });
  drawn(box, draw);
  const legend = h("p.key", {}, [["#f0b35a", "your code"], ["#a9bdd3", "a library's"], ["#c5cbd3", "no stack"]].map(([colour, words]) =>
    [h("i.swatch", { style: { background: colour } }), words, " "]), h("button.link", { type: "button", on: { click: () => zoom(root) } }, "show all"));
  return h("div.flame", {}, told, h("div.scroll", {}, box), legend);
}
