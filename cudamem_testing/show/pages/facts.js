// What a finding is about, drawn: the chain of holders, a cycle, a bar against its bound, places before and after.
const TONES = { fail: "bad", warn: "warn", note: "calm" };
const WORDS = { fail: "fails", warn: "warning", note: "note" };

const pill = (tone, words) => h(`span.pill.${tone}`, {}, words);
const SHORT = { "budget: over budget": "over budget", "budget: under lower bound": "under its lower bound", "baseline: over budget": "baseline: grew", "oom: out of memory": "out of memory" };
const findingPill = (one) => pill(TONES[one.s], one.k === one.v ? one.k : SHORT[`${one.k}: ${one.v}`] || `${one.k}: ${one.v}`);

function copyable(text, label) {
  const button = h("button", { type: "button", on: { click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } } }, "copy");
  const code = h("code", { tabindex: "0", role: "group", "aria-label": label }, text);
  return h("div.command", {}, code, button);
}

// A change as a bar from the middle: what grew leads to the right and is red.
const middleBar = (value, most) => h("span.bar.middle", { "aria-hidden": "true" }, h(value > 0 ? "span.fill.bad" : "span.fill.good",
  { style: { width: `${50 * Math.min(1, Math.abs(value) / most)}%`, [value > 0 ? "left" : "right"]: "50%" } }));

// A bar with a mark: what was measured, against the bound.
function boundBar(metric, side, bound, measured) {
  const most = Math.max(bound, measured) * 1.02 || 1;
  const broken = side === "at most" ? measured > bound : measured < bound;
  return h("div.bound-bar", { role: "img", "aria-label": `${metric} ${metricText(metric, measured)}, ${side} ${metricText(metric, bound)}` },
    h("div.track", {},
      h(broken ? "div.fill.bad" : "div.fill", { style: { width: `${(100 * Math.min(measured, most)) / most}%` } }),
      h("div.tick", { style: { left: `${(100 * bound) / most}%` } })),
    h("p.muted", {}, `${metricText(metric, measured)} measured, ${side} ${metricText(metric, bound)} allowed`));
}

// Boxes below each other; the words between two of them are the reference that leads from one to the next.
function chain([name, size, root, rootKind, steps]) {
  const shown = steps.length > 14 ? [...steps.slice(0, 7), null, ...steps.slice(-7)] : steps;
  return h("ol.chain", { "aria-label": "who holds it" },
    h("li.root", {}, h("span.box", {}, h("b", {}, elide(root, 160)))),
    shown.map((step, i) => step === null
      ? h("li", {}, h("span.box.gap", {}, `${steps.length - 14} more`))
      : h(i === shown.length - 1 ? "li.end" : "li", {}, h("span.edge", {}, elide(step[0], 160)), h("span.box", {}, elide(step[2], 120)))),
    h("li.kept", {}, h("span.edge", {}, "keeps"), h("span.box.bytes", {}, h("b", {}, bytes(size)), " ", elide(name, 120))));
}

// Objects on a ring, each with an arrow to the next; more than eight are boxes in a row with a way back.
function cycle(pieces, keeps, size) {
  const nodes = pieces.slice(0, -1);
  const shown = nodes.length > 16 ? [...nodes.slice(0, 8), null, ...nodes.slice(-8)] : nodes;
  const split = (piece) => {
    const place = piece.search(/[.[]/);
    return place > 0 ? [piece.slice(0, place), piece.slice(place)] : [piece, ""];
  };
  const ring = () => {
    const around = nodes.map(split);
    const n = around.length;
    const [width, height] = [640, n === 1 ? 130 : n === 2 ? 190 : 300];
    const [rx, ry] = [190, height / 2 - 34];
    const angle = (i) => (n === 1 ? Math.PI : -Math.PI / 2 + (2 * Math.PI * i) / n - (n === 2 ? Math.PI / 2 : 0));
    const at = (a) => [width / 2 + rx * Math.cos(a), height / 2 + ry * Math.sin(a)];
    const half = (i) => Math.min(85, 12 + 3.9 * elide(around[i][0], 20).length);
    // Where on the ring the box of a node ends, walked in small steps.
    const edge = (i, way) => {
      const [cx, cy] = at(angle(i));
      let a = angle(i);
      for (let step = 0; step < 400; step += 1) {
        const [x, y] = at(a);
        if (Math.abs(x - cx) > half(i) + 4 || Math.abs(y - cy) > 18) break;
        a += way * 0.01;
      }
      return a;
    };
    const picture = s("svg.ring-picture", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `a ring of ${count(n, "object")}: ${around.map(([holder, reference]) => `${holder}${reference}`).join(", then ")}` },
      s("defs", {}, s("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" }, s("path.head", { d: "M0 0L8 4L0 8Z" }))));
    around.forEach(([, reference], i) => {
      const from = edge(i, 1);
      let to = edge((i + 1) % n, -1);
      while (to <= from) to += 2 * Math.PI;
      const [[x1, y1], [x2, y2]] = [at(from), at(to)];
      picture.append(s("path.arc", { d: `M${x1} ${y1}A${rx} ${ry} 0 ${to - from > Math.PI ? 1 : 0} 1 ${x2} ${y2}`, "marker-end": "url(#head)" }));
      const [lx, ly] = at((from + to) / 2);
      const aside = n > 2 && Math.abs(lx - width / 2) > 40;
      picture.append(s("text.reference", { x: aside ? lx + (lx > width / 2 ? 8 : -8) : lx, y: ly + (aside ? 4 : ly < height / 2 ? -8 : 17), "text-anchor": aside ? (lx > width / 2 ? "start" : "end") : "middle" }, elide(reference || "refers to", aside ? 22 : 44), s("title", {}, reference)));
    });
    around.forEach(([holder], i) => {
      const [x, y] = at(angle(i));
      picture.append(s("rect.object", { x: x - half(i), y: y - 15, width: 2 * half(i), height: 30, rx: 7 }), s("text.object", { x, y: y + 4.5, "text-anchor": "middle" }, elide(holder, 20), s("title", {}, holder)));
    });
    return picture;
  };
  const round = nodes.length && nodes.length <= 8;
  return h("div.cycle", {}, round ? ring() : "", // a phone has no room for the ring, and shows the row
    h(round ? "ol.chain.ring.narrow" : "ol.chain.ring", { "aria-label": "objects that refer to each other in a ring" }, shown.map((piece) => {
      if (piece === null) return h("li", {}, h("span.box.gap", {}, `${nodes.length - 16} more`));
      const [holder, reference] = split(piece);
      return h("li", {}, h("span.box", {}, elide(holder, 120)), h("span.edge", {}, elide(reference || "refers to", 160)));
    }), h("li.back", {}, h("span.muted", {}, `back to ${elide(split(pieces[pieces.length - 1] || "")[0], 80)}`))),
    keeps.length ? h("p", {}, h("b", {}, bytes(size)), " kept: ", h("span.code", {}, elide(keeps.join(", "), 300))) : null);
}

// Bytes of each place before and after, the one that grew most first; what was not recorded had `hidden` at most.
function beforeAfter(rows, names = ["before", "after"]) {
  const most = Math.max(1, ...rows.flatMap(([, , before, hidden, after]) => [before || 0, after || 0, hidden || 0]));
  const bar = (kind, size) => h("div.pair-bar", {}, h(`div.fill.${kind}`, { style: { width: `${(100 * (size || 0)) / most}%` } }));
  return h("table.pairs", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "place"), h("th.num", { scope: "col" }, names[0]),
    h("th.num", { scope: "col" }, names[1]), h("th.num", { scope: "col" }, "change"), h("th.bars", { scope: "col" }, "size"))),
  h("tbody", {}, rows.map(([place, line, before, hidden, after]) => h("tr", {},
    h("th.code", { scope: "row" }, elide(place, 120), line && line !== place ? h("div.muted", {}, elide(line, 120)) : ""),
    h("td.num", {}, before === null ? (hidden ? `at most ${bytes(hidden)}` : "none") : bytes(before)),
    h("td.num", {}, after === null ? "none" : bytes(after)),
    h("td.num", {}, signed((after || 0) - (before ?? hidden ?? 0))),
    h("td.bars", {}, bar("before", before ?? hidden), bar("after", after))))));
}

function changeOf([metric, before, after, slack, places]) {
  const grew = after[1] - before[1];
  return h("div.change", {},
    h("p", {}, h("b", {}, metric), `: ${range(metric, before)} recorded, ${range(metric, after)} now, `,
      h(grew > 0 ? "b.worse" : "b.better", {}, signed(grew, (value) => metricText(metric, value))), slack ? h("span.muted", {}, ` (${metricText(metric, slack)} allowed)`) : ""),
    boundBar(metric, "at most", before[1] + slack, after[1]),
    places.length ? beforeAfter(places, ["recorded", "now"]) : null);
}

// Lines of two texts, the common ones once; by the longest common subsequence, for texts of usual length.
function difference(wanted, found) {
  const [a, b] = [wanted.split("\n"), found.split("\n")];
  if (a.length * b.length > 400000) return h("div.two", {}, h("pre", {}, wanted), h("pre", {}, found));
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push(["", " ", a[i++]]), (j += 1);
    else if (i < a.length && (j >= b.length || table[i + 1][j] >= table[i][j + 1])) lines.push(["del", "−", a[i++]]);
    else lines.push(["ins", "+", b[j++]]);
  }
  return h("pre.diff", { tabindex: "0", role: "group", "aria-label": "expected and found text" }, lines.map(([kind, sign, text]) =>
    h(kind ? `span.${kind}` : "span", {}, `${sign} ${text}\n`)));
}

function findingCard(one, data, linked) {
  const cause = one.c === undefined ? null : data.causes[one.c];
  const drawn = [];
  if (one.limit) drawn.push(boundBar(one.limit[0], one.limit[1], one.limit[2], one.limit[3]));
  if (one.chains) drawn.push(...one.chains.slice(0, 3).map(chain));
  if (one.cycle) drawn.push(cycle(one.cycle, one.keeps, one.b || 0));
  if (one.change) drawn.push(changeOf(one.change));
  const text = one.x.join("\n");
  return h(`article.finding.${TONES[one.s]}`, {},
    h("header", {}, findingPill(one), h("span.muted", {}, WORDS[one.s]), one.st ? pill("calm", one.st) : "",
      cause && cause.tests.length > 1 ? h("a", { href: link("cause", cause.key) }, `${count(cause.tests.length, "test")} with this cause`) : ""),
    h("h3", {}, linked && one.n !== undefined ? h("a", { href: link("test", data.tests[one.n].id) }, elide(one.t, 400)) : elide(one.t, 400)),
    drawn,
    text ? h("details", { open: one.s !== "note" && (!drawn.length || text.length < 1600) }, h("summary", {}, "details"), h("pre", {}, text)) : "");
}
