"use strict";
// Boxes and arrows: data is {boxes: [[label, kind, detail]], arrows: [[source, target, label, marked]], notes: [text],
// legend: [[kind, words]], layers: [row of each box] or []}.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const aside = document.getElementById("detail");
  const colours = { tensor: "#e5484d", cycle: "#ffd166", backward: "#cdbdf2", "": "#e9eef5" };
  const text = (tag, words, kind) => {
    const node = document.createElement(tag);
    node.textContent = words;
    if (kind) node.className = kind;
    return node;
  };

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
  const graph = cytoscape({
    container: document.getElementById("view"),
    elements,
    wheelSensitivity: 0.3,
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
        "text-background-color": "#fbfcfd", "text-background-opacity": 0.9, "text-background-padding": "2px" } },
      { selector: "edge[marked = 1]", style: {
        width: 3, "line-color": "#c58a00", "target-arrow-color": "#c58a00" } },
    ],
  });

  if (data.layers.length && graph.zoom() < 0.6) { // too small to read: begin at the top
    const box = graph.elements().boundingBox();
    graph.zoom(Math.min(0.8, Math.max(0.35, graph.width() / (box.w + 60))));
    graph.pan({ x: graph.width() / 2 - (graph.zoom() * (box.x1 + box.x2)) / 2, y: 30 - graph.zoom() * box.y1 });
  }

  const controls = document.createElement("p");
  for (const [words, action] of [
    ["Fit", () => graph.fit(undefined, 30)],
    ["+", () => graph.zoom({ level: graph.zoom() * 1.3, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } })],
    ["−", () => graph.zoom({ level: graph.zoom() / 1.3, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } })],
  ]) {
    const button = text("button", words);
    button.addEventListener("click", action);
    controls.append(button);
  }
  const legend = document.createElement("p");
  legend.className = "legend";
  for (const [kind, words] of data.legend) {
    const entry = text("span", words);
    const sample = document.createElement("i");
    sample.style.background = colours[kind];
    entry.prepend(sample);
    legend.append(entry);
  }
  const shown = document.createElement("section");
  shown.id = "shown";
  shown.append(text("p", "Click a box, or hold the pointer over it, to see what it is. Zoom with the wheel, drag to move."));
  aside.append(controls, legend, ...data.notes.map((note) => text("p", note, "note")), shown);

  const show = (place) => {
    const [label, , detail] = data.boxes[place];
    shown.replaceChildren(text("h2", label), text("pre", detail || "no more is known of it"));
  };
  graph.on("tap mouseover", "node", (event) => show(event.target.data("place")));
  window.cudamemDiagram = graph;
})();
