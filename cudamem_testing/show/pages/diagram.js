// Boxes and arrows: data is {boxes: [[label, kind, detail]], arrows: [[source, target, label, marked]], notes: [text],
// legend: [[kind, words]], layers: [row of each box] or []}.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const aside = document.getElementById("detail");
  const picture = h("div.picture", { role: "img", "aria-label": `${data.boxes.length} boxes and ${data.arrows.length} arrows: the list beside the picture names each` });
  document.getElementById("view").append(picture);
  const colours = { tensor: "#c9353b", cycle: "#ffd166", backward: "#cdbdf2", "": "#e9eef5" };
  const MOST = 300; // boxes in the list
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const elements = data.boxes.map(([label, kind], i) => ({ data: { id: `n${i}`, label, kind, place: i } }));
  data.arrows.forEach(([source, target, label, marked], i) =>
    elements.push({ data: { id: `e${i}`, source: `n${source}`, target: `n${target}`, label, marked: marked ? 1 : 0 } }));
  // With layers boxes are measured here: cytoscape knows the size of a label only after the first drawing.
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = "12px Helvetica, sans-serif";
  const lines = (i) => data.boxes[i][0].split("\n");
  const width = (i) => Math.max(...lines(i).map((line) => canvas.measureText(line).width));
  const sized = (size) => (data.layers.length ? (node) => size(node.data("place")) : "label");

  // Row by row, each box as near as there is room to the middle of what leads to it.
  const placed = () => {
    const x = data.boxes.map(() => 0);
    const sources = data.boxes.map(() => []);
    for (const [source, target] of data.arrows) if (data.layers[source] < data.layers[target]) sources[target].push(source);
    const rows = new Map();
    data.layers.forEach((layer, i) => rows.set(layer, [...(rows.get(layer) || []), i]));
    for (const layer of [...rows.keys()].sort((a, b) => a - b)) {
      const row = rows.get(layer);
      const wish = new Map(row.map((i) => [i, sources[i].reduce((sum, j) => sum + x[j], 0) / (sources[i].length || 1)]));
      row.sort((a, b) => wish.get(a) - wish.get(b) || a - b);
      let right = -Infinity;
      let shift = 0;
      for (const i of row) {
        x[i] = Math.max(wish.get(i), right + width(i) / 2);
        right = x[i] + width(i) / 2 + 40;
        shift += (x[i] - wish.get(i)) / row.length;
      }
      for (const i of row) x[i] -= shift;
    }
    return (node) => ({ x: x[node.data("place")], y: 90 * data.layers[node.data("place")] });
  };
  const roots = data.boxes.flatMap(([, kind], i) => (kind === "cycle" ? [`#n${i}`] : [])).slice(0, 1);
  cytoscape.warnings(false);
  const graph = cytoscape({
    container: picture,
    elements,
    layout: data.layers.length ? { name: "preset", positions: placed(), padding: 30 } : {
      name: "breadthfirst", directed: true, roots: roots.length ? roots.join(",") : undefined,
      spacingFactor: 1.25, avoidOverlap: true, nodeDimensionsIncludeLabels: true, padding: 30,
    },
    style: [
      { selector: "node", style: {
        shape: "round-rectangle", label: "data(label)", padding: "8px",
        width: sized(width), height: sized((i) => 14 * lines(i).length),
        "text-valign": "center", "text-wrap": "wrap", "text-max-width": data.layers.length ? "1000px" : "220px", "font-size": 12,
        "background-color": (node) => colours[node.data("kind")] || colours[""],
        color: (node) => (node.data("kind") === "tensor" ? "#fff" : "#1d2733"),
        "border-width": 1, "border-color": "#5b6b7d" } },
      { selector: "node:selected", style: { "border-width": 4, "border-color": "#0b62d6" } },
      { selector: "edge", style: {
        label: "data(label)", "font-size": 10, width: 1, "curve-style": "bezier", "line-color": "#8b99a8",
        "target-arrow-color": "#8b99a8", "target-arrow-shape": "triangle", "text-rotation": "autorotate",
        color: colour("--ink"), "text-background-color": colour("--sheet"), "text-background-opacity": 0.9, "text-background-padding": "2px" } },
      { selector: "edge[marked = 1]", style: {
        width: 3, "line-color": "#c58a00", "target-arrow-color": "#c58a00" } },
    ],
  });

  const fit = () => {
    graph.fit(undefined, 30);
    if (graph.zoom() > 1.4) { // few boxes: larger ones would say no more
      graph.zoom(1.4);
      graph.center();
    }
  };
  fit();
  if (data.layers.length && graph.zoom() < 0.6) { // too small to read: begin at the top
    const box = graph.elements().boundingBox();
    graph.zoom(Math.min(0.8, Math.max(0.35, graph.width() / (box.w + 60))));
    graph.pan({ x: graph.width() / 2 - (graph.zoom() * (box.x1 + box.x2)) / 2, y: 30 - graph.zoom() * box.y1 });
  }

  const title = (place) => elide(data.boxes[place][0].replace(/\n/g, " "), 120);
  const zoom = (factor) => graph.zoom({ level: graph.zoom() * factor, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } });
  const button = (words, label, run) => h("button", { type: "button", "aria-label": label, on: { click: run } }, words);
  const shown = h("section", { id: "shown", "aria-live": "polite" }, h("p", {}, "Choose a box in the picture or in the list to see what it is. Zoom with the wheel, drag to move."));

  // What leads to a box and where it leads, as links: the picture itself is pixels.
  const arrows = (place) => data.arrows.flatMap(([source, target, label]) => [
    ...(source === place ? [h("li", {}, `${label || "leads"} → `, open(target))] : []),
    ...(target === place ? [h("li", {}, open(source), ` ${label || "leads"} → this`)] : []),
  ]);
  const show = (place) => {
    const [label, , detail] = data.boxes[place];
    shown.replaceChildren(h("h2", {}, elide(label, 300)), h("pre", { tabindex: "0", role: "group", "aria-label": "details" }, detail || "no more is known of it"), h("ul", {}, arrows(place).slice(0, 40)));
  };
  const open = (place) => h("button.link", { type: "button", on: { click: () => {
    graph.elements().unselect();
    graph.getElementById(`n${place}`).select();
    graph.center(graph.getElementById(`n${place}`));
    show(place);
  } } }, title(place));
  graph.on("tap mouseover", "node", (event) => show(event.target.data("place")));

  const list = h("ul.boxes");
  const fill_ = (words) => {
    const found = data.boxes.map((_, place) => place).filter((place) => data.boxes[place][0].toLowerCase().includes(words.toLowerCase()));
    const more = found.length > MOST ? [h("li.muted", {}, `${found.length - MOST} more: search for them`)] : [];
    list.replaceChildren(...found.slice(0, MOST).map((place) => h("li", {}, open(place))), ...more);
  };
  fill_("");
  const search = data.boxes.length > 12 && h("input", { type: "search", placeholder: "search boxes", "aria-label": "search boxes by their label", autocomplete: "off", on: { input: (event) => fill_(event.target.value) } });
  aside.append(
    h("p.controls", {}, button("Fit", "show everything", fit), button("+", "zoom in", () => zoom(1.3)), button("−", "zoom out", () => zoom(1 / 1.3))),
    h("p.legend", {}, data.legend.map(([kind, words]) => h("span", {}, h("i", { style: { background: colours[kind] } }), words))),
    ...data.notes.map((note) => h("p.note", {}, note)), shown, h("h2", {}, "Boxes"), search || "", list);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    graph.style().selector("edge").style({ color: colour("--ink"), "text-background-color": colour("--sheet") }).update());
  window.cudamemDiagram = graph;
})();
