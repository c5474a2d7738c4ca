// Snapshots: for each file its numbers, and the sections that were asked for.
const data = JSON.parse(document.getElementById("data").textContent);
const view = document.getElementById("view");

// Columns in `sizes` are bytes, those in `counts` numbers, those in `prose` words and not code; `bar` is the column with bars.
function plainTable({ title, of, heads, sizes, counts, prose, rows, bar, note, marked }) {
  const right = new Set([...(sizes || []), ...(counts || [])]);
  const isSize_ = new Set(sizes || []);
  const most = bar === undefined ? 1 : Math.max(1, ...rows.map((row) => row[bar] || 0));
  const cell = (value, place) => {
    const content = value === null ? h("span.muted", {}, "unknown") : isSize_.has(place) ? bytes(value) : typeof value === "number" ? number(value) : elide(value, 200);
    if (right.has(place)) return h("td.num", {}, content, place === bar ? h("span.bar", { "aria-hidden": "true" }, h("span.fill", { style: { width: `${(100 * (value || 0)) / most}%` } })) : "");
    return h(prose && prose.includes(place) ? "td.prose" : "td.code", {}, content);
  };
  return [h("div.wide", { tabindex: "0", role: "region", "aria-label": of ? `${title}, ${of}` : title }, h("table.plain", {},
    h("thead", {}, h("tr", {}, heads.map((head, place) => h(right.has(place) ? "th.num" : "th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row, place) => h(marked && marked.includes(place) ? "tr.marked" : "tr", {}, row.map(cell)))))),
  note ? h("p.muted", {}, note) : null];
}

const SECTIONS = {
  curve: (one) => curveChart(one.curve),
  flame: (one) => icicle(one, data.frames, data.stacks, one.title, one.whole || "all"),
  table: plainTable,
  map: memoryMap,
  pairs: (one) => beforeAfter(one.rows, one.names),
  lines: (one) => h("ul", {}, one.lines.map((line) => h("li", {}, elide(line, 600)))),
  text: (one) => [one.lines.map((line) => h("p", {}, elide(line, 600)))],
};

const sectionOf = (one) => h(one.kind === "lines" ? "section.lines.warn" : one.tone ? `section.lines.${one.tone}` : "section", {}, h("h2", {}, one.title), SECTIONS[one.kind](one));

view.append(h("div", {}, data.files.map((file) => [
  h("section.title", {}, h("h2.code", {}, elide(file.name, 300)), file.verdict ? h("p", {}, h("b", {}, file.verdict)) : null),
  h("div.tiles", {}, file.tiles.map(([label, value, tone]) => h("div.tile", {}, h(tone ? `b.${tone}` : "b", {}, value), h("span", {}, label)))),
  file.sections.map((one) => sectionOf(data.files.length > 1 ? { ...one, of: file.name } : one)),
])));
