// Bars of tensors over operators: time runs from left to right, a bar is as high as its bytes.
// data is {bars: [[label, device, first, last, place, size, kind, detail, uses]], steps: [[label, modules, backward,
// detail]], modules: [name], devices: [name], legend: [[kind, colour]], notes: [text]}.
const data = JSON.parse(document.getElementById("data").textContent);
const view = document.getElementById("view");
const aside = document.getElementById("detail");
const colours = Object.fromEntries(data.legend);
// Black text on dark colours is hard to read: those of a luminance below 0.2 get white.
const isDark = (colour) => {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt((colour || "#bbbbbb").slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.2;
};
const steps = data.steps.length;
const LEFT = 70;
const AXIS = 66;
let device = 0;
let from = -1; // the steps in sight
let until = steps + 0.5;
let low = 0; // the bytes in sight
let high = 1;
let chosen = null;
let words = "";

const BAR = { label: 0, device: 1, first: 2, last: 3, place: 4, size: 5, kind: 6, detail: 7, uses: 8 };
const mine = () => data.bars.filter((bar) => bar[BAR.device] === device);
const top_ = () => Math.max(1, ...mine().map((bar) => bar[BAR.place] + bar[BAR.size]));
const text = (bar) => `${bar[BAR.label]} ${bar[BAR.kind]} ${bar[BAR.detail]}`.toLowerCase();
const found = () => {
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  return parts.length ? mine().filter((bar) => parts.every((part) => text(bar).includes(part))) : [];
};

// Runs of operators inside the same module, at one level of modules.
function runs(level) {
  const made = [];
  data.steps.forEach(([, modules], i) => {
    const module = modules.length > level ? modules[level] : null;
    const last = made[made.length - 1];
    if (last && last.module === module) last.until = i + 1; // what lies between was outside of any module
    else if (module !== null) made.push({ module, from: i, until: i + 1 });
  });
  return made;
}
const deepest = Math.max(0, ...data.steps.map(([, modules]) => modules.length));
const levels = [0, 1, 2, 3, 4, 5].filter((level) => level < deepest).map(runs);
// Where all that runs is inside of one module, its parts say more.
const isBackward = ({ module }) => data.modules[module] === "backward pass";
const backward = levels.length ? levels[0].filter(isBackward) : [];
if (levels.length) levels[0] = levels[0].filter((run) => !isBackward(run));
while (levels.length > 2 && levels[0].length === 1) levels.shift();
if (levels.length) levels[0].push(...backward);
const rows = levels.slice(0, 2);

const totals = () => {
  const sums = new Float64Array(steps + 2);
  for (const bar of mine()) {
    sums[bar[BAR.first] + 1] += bar[BAR.size];
    if (bar[BAR.last] < steps) sums[bar[BAR.last] + 1] -= bar[BAR.size];
  }
  for (let i = 1; i < sums.length; i += 1) sums[i] += sums[i - 1];
  return sums;
};

const plot = h("div.lives", { tabindex: "0", role: "application", "aria-label": "lifetimes of tensors: arrow keys move, plus and minus zoom, 0 shows all" });
const shown = h("section", { id: "shown", "aria-live": "polite" });

function draw() {
  const width = plot.clientWidth;
  const height = Math.max(220, plot.clientHeight);
  if (!width) return;
  const bottom = height - AXIS;
  const x = (step) => LEFT + ((width - LEFT - 8) * (step - from)) / (until - from);
  const y = (size) => bottom - ((bottom - 8) * (size - low)) / (high - low);
  const matches = new Set(found());
  const searching = words.trim() !== "";
  const picture = s("svg", { width, height, role: "img", "aria-label": `${count(mine().length, "tensor")} of ${data.devices[device] || "no device"} over ${count(steps, "operator")}` });
  for (const value of ticks(high - low, 6)) {
    picture.append(s("line.grid", { x1: LEFT, x2: width - 8, y1: y(low + value), y2: y(low + value) }),
      s("text.axis", { x: LEFT - 6, y: y(low + value) + 4, "text-anchor": "end" }, tick(low + value)));
  }
  const clip = s("g", { "clip-path": "url(#inside)" });
  picture.append(s("defs", {}, s("clipPath", { id: "inside" }, s("rect", { x: LEFT, y: 0, width: width - LEFT - 8, height: bottom }))), clip);
  for (const bar of mine()) {
    const [first, last] = [Math.max(bar[BAR.first], -1), bar[BAR.last] >= steps ? steps + 0.5 : bar[BAR.last]];
    const [x1, x2] = [Math.max(x(first), LEFT - 2), Math.min(x(last), width)];
    const [y1, y2] = [y(bar[BAR.place] + bar[BAR.size]), y(bar[BAR.place])];
    if (x2 < LEFT || x1 > width - 8 || y2 < 0 || y1 > bottom || (y2 - y1 < 0.25 && bar !== chosen && !matches.has(bar))) continue;
    const state = `${searching && !matches.has(bar) ? ".dim" : ""}${bar === chosen ? ".chosen" : ""}`;
    const rect = s(`rect.bar${state}`, { x: x1, y: y1, width: Math.max(1, x2 - x1 - 0.5), height: Math.max(matches.has(bar) ? 2 : 0.5, y2 - y1 - (y2 - y1 > 3 ? 0.6 : 0)), style: { fill: colours[bar[BAR.kind]] || "#bbbbbb" } });
    rect.bar = bar;
    clip.append(rect);
    if (y2 - y1 > 13 && x2 - x1 > 46) {
      const label = s(`text.name${isDark(colours[bar[BAR.kind]]) ? ".light" : ""}${state}`, { x: Math.max(x1, LEFT) + 4, y: (y1 + y2) / 2 + 4 }, elide(bar[BAR.label], Math.floor((x2 - Math.max(x1, LEFT) - 8) / 7)));
      clip.append(label);
    }
  }
  const sums = totals();
  let line = "";
  for (let i = 0; i < sums.length; i += 1) {
    const here = x(i - 1);
    const next = x(i === sums.length - 1 ? steps + 0.5 : i);
    if (next >= LEFT && here <= width) line += `${line ? "L" : "M"}${here.toFixed(1)} ${y(sums[i]).toFixed(1)}L${next.toFixed(1)} ${y(sums[i]).toFixed(1)}`;
  }
  clip.append(s("path.total", { d: line }));
  if (chosen) for (const use of chosen[BAR.uses]) clip.append(s("line.use", { x1: x(use), x2: x(use), y1: y(chosen[BAR.place] + chosen[BAR.size]), y2: bottom }));
  rows.forEach((row, level) => {
    for (const { module, from: first, until: last } of row) {
      const [x1, x2] = [Math.max(x(first), LEFT), Math.min(x(last), width - 8)];
      if (x2 - x1 < 1.5) continue;
      const name = data.modules[module];
      const band = s(`rect.module.level${level}`, { x: x1, y: bottom + 4 + 19 * level, width: x2 - x1 - 1, height: 17, rx: 2 }, s("title", {}, name));
      band.span = [first, last];
      picture.append(band);
      if (x2 - x1 > 34) picture.append(s("text.module", { x: (x1 + x2) / 2, y: bottom + 17 + 19 * level, "text-anchor": "middle" }, elide(name, Math.floor((x2 - x1 - 6) / 7))));
    }
  });
  const gap = x(1) - x(0);
  data.steps.forEach(([name, , backward], i) => {
    if (i + 1 < from || i > until || gap < 5) return;
    const tick_ = s(backward ? "rect.step.backward" : "rect.step", { x: x(i) + 0.5, y: bottom + 44, width: Math.max(1, gap - 1), height: 14, rx: 2 }, s("title", {}, name));
    tick_.step = i;
    picture.append(tick_);
    if (gap > 46) picture.append(s("text.step", { x: x(i) + gap / 2, y: bottom + 55, "text-anchor": "middle" }, elide(name.replace(/^aten::/, ""), Math.floor((gap - 4) / 6.5))));
  });
  if (gap < 5) picture.append(s("text.axis", { x: LEFT, y: bottom + 56 }, `operators ${Math.max(0, Math.round(from))} to ${Math.min(steps, Math.round(until))} of ${number(steps)}: zoom in to see them`));
  picture.append(s("line.axis", { x1: LEFT, x2: width - 8, y1: bottom, y2: bottom }));
  plot.replaceChildren(picture);
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function zoom(factor, share = 0.5) {
  const middle = from + (until - from) * share;
  const span = Math.min(steps + 1.5, Math.max(4, (until - from) * factor));
  from = Math.max(-1, Math.min(middle - span * share, steps + 0.5 - span));
  until = from + span;
  redraw();
}

function pan(share) {
  const by = Math.max(-1 - from, Math.min(steps + 0.5 - until, (until - from) * share));
  from += by;
  until += by;
  redraw();
}

function all() {
  [from, until, low, high] = [-1, steps + 0.5, 0, top_() * 1.03];
  redraw();
}

function show(bar, move) {
  chosen = bar;
  if (bar && move) {
    const last = Math.min(bar[BAR.last], steps);
    const span = Math.max(12, (last - bar[BAR.first]) * 1.6);
    from = Math.max(-1, (bar[BAR.first] + last) / 2 - span / 2);
    until = Math.min(steps + 0.5, from + span);
  }
  shown.replaceChildren(...(bar ? [h("h2", {}, elide(bar[BAR.label], 300)), h("p", {}, h("i.swatch", { style: { background: colours[bar[BAR.kind]] || "#bbb" } }), `${bar[BAR.kind]}, ${bytes(bar[BAR.size])} on ${data.devices[bar[BAR.device]]}`), h("pre", {}, bar[BAR.detail])] : []));
  redraw();
}

function showStep(i) {
  const [name, modules, , detail] = data.steps[i];
  shown.replaceChildren(h("h2", {}, elide(name, 300)), h("p", {}, `operator ${i + 1} of ${number(steps)}`), modules.length ? h("p.code", {}, modules.map((one) => data.modules[one]).join(" › ")) : "", h("pre", {}, detail || "no more is known of it"));
}

plot.addEventListener("click", (event) => {
  const { bar, step, span } = event.target;
  if (bar) show(bar);
  else if (step !== undefined) showStep(step);
  else if (span) { [from, until] = [Math.max(-1, span[0] - 1), Math.min(steps + 0.5, span[1] + 1)]; redraw(); }
});
plot.addEventListener("wheel", (event) => {
  event.preventDefault();
  const share = Math.max(0, Math.min(1, (event.clientX - plot.getBoundingClientRect().left - LEFT) / (plot.clientWidth - LEFT - 8)));
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 600);
  else zoom(event.deltaY > 0 ? 1.25 : 0.8, share);
}, { passive: false });
let drag = null;
plot.addEventListener("pointerdown", (event) => { drag = [event.clientX, event.clientY]; });
plot.addEventListener("pointermove", (event) => {
  if (!drag || !event.buttons) return;
  const height = Math.max(60, plot.clientHeight - AXIS);
  pan((drag[0] - event.clientX) / (plot.clientWidth - LEFT));
  const up = ((event.clientY - drag[1]) / height) * (high - low);
  if (low + up >= 0 && high + up <= top_() * 1.05) { low += up; high += up; }
  drag = [event.clientX, event.clientY];
});
addEventListener("pointerup", () => { drag = null; });
plot.addEventListener("keydown", (event) => {
  const run = { ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), 0: all, ArrowUp: () => taller(0.7), ArrowDown: () => taller(1.4) }[event.key];
  if (!run) return;
  event.preventDefault();
  run();
});
function taller(factor) {
  high = Math.min(top_() * 1.03, low + (high - low) * factor);
  redraw();
}

const button = (name, label, run) => h("button", { type: "button", "aria-label": label, on: { click: run } }, name);
const result = h("span.muted", { role: "status" });
let next = 0;
const search = h("input", { type: "search", id: "search", placeholder: "search tensors", "aria-label": "search tensors by name, category or operator", autocomplete: "off", on: {
  input: () => { words = search.value; next = 0; result.textContent = words.trim() ? count(found().length, "tensor") : ""; redraw(); },
  keydown: (event) => {
    const some = found();
    if (event.key === "Enter" && some.length) show(some[next++ % some.length], true);
  },
} });
const devices = data.devices.length > 1 ? h("select", { "aria-label": "device", on: { change: (event) => { device = Number(event.target.value); list(); all(); } } }, data.devices.map((name, i) => h("option", { value: i }, name))) : "";
const largest = h("ul.largest");
function list() {
  const some = [...mine()].sort((a, b) => b[BAR.size] - a[BAR.size]).slice(0, 12);
  largest.replaceChildren(...some.map((bar) => h("li", {}, h("button.link", { type: "button", on: { click: () => show(bar, true) } }, `${bytes(bar[BAR.size])}  ${elide(bar[BAR.label], 60)}`))));
}
aside.append(h("div.tools", {}, search, result, devices), h("p.tools", {}, button("all", "show everything", all), button("+", "zoom in", () => zoom(0.6)), button("−", "zoom out", () => zoom(1.6)), button("taller", "make bars taller", () => taller(0.6)), button("flatter", "make bars flatter", () => taller(1.6))),
  h("p.legend", {}, data.legend.map(([kind, colour]) => h("span", {}, h("i.swatch", { style: { background: colour } }), kind))),
  ...data.notes.map((note) => h("p.note", {}, note)), shown, h("h2", {}, "Largest tensors"), largest);
view.append(plot);
addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== search) { event.preventDefault(); search.focus(); }
});
if (!data.bars.length) shown.replaceChildren(h("p", {}, "No tensor with bytes was seen."));
list();
new ResizeObserver(redraw).observe(plot);
all();
