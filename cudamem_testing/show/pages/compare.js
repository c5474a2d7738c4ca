// Two reports: what grew, what shrank, what is new and gone.
function changesTable(compared) {
  const most = Math.max(1, ...compared.rows.filter((row) => isSize(row[2])).map((row) => Math.abs(row[5])));
  const rows = compared.rows.map(([name, device, metric, before, after, growth, broken], place) => ({ place, name, device, metric, before, after, growth, broken, tone: broken ? "bad" : "", text: `${name} ${metric} ${device}`.toLowerCase() }));
  const several = new Set(rows.map((row) => row.device)).size > 1;
  const metrics = new Set(rows.map((row) => row.metric)).size > 1;
  const columns = [
    { title: "test", heads: true, value: (row) => row.name, cell: (row) => h("a", { href: link("test", row.name), title: elide(row.name, 600) }, nameOf(row.name)) },
    metrics && { title: "metric", kind: "text", keep: true, value: (row) => row.metric, cell: (row) => row.metric },
    { title: "before", kind: "num", value: (row) => row.before[1], cell: (row) => range(row.metric, row.before) },
    { title: "after", kind: "num", value: (row) => row.after[1], cell: (row) => range(row.metric, row.after) },
    { title: "change", kind: "num", keep: true, value: (row) => Math.abs(row.growth), cell: (row) => [h(row.growth > 0 ? "b.worse" : "b.better", {}, signed(row.growth, (value) => metricText(row.metric, value))),
      isSize(row.metric) ? middleBar(row.growth, most) : ""] },
    { title: "share", kind: "num", value: (row) => (row.before[1] ? row.growth / row.before[1] : null), cell: (row) => (row.before[1] ? signed(row.growth / row.before[1], percent) : "new") },
    several && { title: "device", kind: "text", value: (row) => row.device, cell: (row) => row.device },
  ].filter(Boolean);
  const table = bigTable({ caption: "list of changes", columns, rows, order: [columns.findIndex((one) => one.title === "change"), true], cells: (row) => columns.map((column) => column.cell(row)) });
  const shown = h("p.muted", { role: "status" }, count(rows.length, "change"));
  const search = h("input", { type: "search", placeholder: "search changes", "aria-label": "search changes by test, metric or device", autocomplete: "off", on: { input: () => {
    const parts = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown.textContent = `${number(table.filter((row) => parts.every((part) => row.text.includes(part))))} of ${count(rows.length, "change")}`;
  } } });
  return h("section", {}, h("h2", {}, "What changed"), h("div.tools", {}, search, shown), table.element);
}

// The curves of one test: bands of the later run, a line of the earlier one; drawn once they are opened.
function bothRuns(data, name, place, open) {
  const box = h("div");
  const draw = () => {
    if (box.firstChild) return;
    for (const curve of data.curves[place]) {
      const earlier = earlierOf(data, place, curve);
      if (earlier) box.append(h("p.muted", {}, `${curve.device}, by ${curve.by === "line" ? "line of code" : "category"}`), curveChart(curve, null, 0, earlier));
    }
  };
  if (open) draw();
  return h("details.both", { open, on: { toggle: draw } }, h("summary.code", {}, elide(name, 200)), h("p", {}, h("a", { href: link("test", name) }, "the page of this test")), box);
}

function namesList(title, names) {
  if (!names.length) return null;
  return h("details", { open: names.length <= 20 }, h("summary", {}, `${title}: ${count(names.length, "test")}`),
    h("ul.code", {}, names.slice(0, 300).map((name) => h("li", {}, elide(name, 240)))), names.length > 300 ? h("p.muted", {}, `${number(names.length - 300)} more`) : "");
}

function comparison(data) {
  const { compared } = data;
  const grew = compared.rows.filter((row) => row[5] > 0).length;
  const broken = compared.rows.filter((row) => row[6]).length;
  const shrank = compared.rows.length - grew;
  const tone = broken ? "bad" : grew ? "warn" : "good";
  const [before, after] = compared.environment.map(([devices, torch]) => [devices.join(", "), torch ? `torch ${torch}` : ""].filter(Boolean).join(" · "));
  const causes = compared.causes.map(([text, kind, verdict, old, now]) => {
    const [state, mark] = !old ? ["bad", "new"] : !now ? ["good", "gone"] : now[1] > old[1] ? ["warn", "larger"] : now[1] < old[1] ? ["good", "smaller"] : ["calm", "the same"];
    const size = (one) => (one ? `${bytes(one[1])} in ${count(one[0], "test")}` : "none");
    return h("tr", {}, h("td", {}, pill(state, mark)), h("th.code", { scope: "row" }, elide(text, 200), h("div.muted", {}, kind === verdict ? kind : `${kind}: ${verdict}`)), h("td.num", {}, size(old)), h("td.num", {}, size(now)));
  });
  const places = Object.entries(compared.places).slice(0, 30);
  const order = new Map(compared.rows.map((row, i) => [row[0], i]).reverse());
  const overTime = data.tests.map((test, place) => [test.id, place]).filter(([, place]) => `before ${place}` in data.curves && String(place) in data.curves)
    .sort((a, b) => (order.get(a[0]) ?? Infinity) - (order.get(b[0]) ?? Infinity));
  return [
    h(`section.verdict.${tone}`, {}, h("span.mark", { "aria-hidden": "true" }, tone === "bad" ? "✗" : tone === "warn" ? "!" : "✓"),
      h("div", {}, h("h2", {}, compared.rows.length ? `${count(grew, "number")} grew, ${number(shrank)} shrank${broken ? `, ${number(broken)} beyond what is allowed` : ""}` : "Nothing changed"),
        h("p.muted", {}, before === after ? before : `before: ${before}; after: ${after}`))),
    linesSection("Compared", compared.lines, "calm"),
    compared.rows.length ? changesTable(compared) : null,
    causes.length ? h("section", {}, h("h2", {}, "Findings by cause"), h("div.wide", { tabindex: "0", role: "region", "aria-label": "causes before and after" }, h("table.plain", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "state"), h("th", { scope: "col" }, "cause"), h("th.num", { scope: "col" }, "before"), h("th.num", { scope: "col" }, "after"))), h("tbody", {}, causes)))) : null,
    overTime.length ? h("section", {}, h("h2", {}, "Memory over time, both runs"), overTime.slice(0, 30).map(([name, place], i) => bothRuns(data, name, place, i < 2)),
      overTime.length > 30 ? h("p.muted", {}, `${count(overTime.length - 30, "more test")}: see their own pages`) : "") : null,
    places.length ? h("section", {}, h("h2", {}, "Live at the peak, before and after"), places.map(([name, rows]) => h("details", { open: places.length < 4 }, h("summary.code", {}, elide(name, 200)),
      beforeAfter(rows.map(([place, old, now]) => [place, null, old, 0, now]))))) : null,
    compared.gone.length || compared.added.length ? h("section", {}, h("h2", {}, "New and gone"), namesList("only after", compared.added), namesList("only before", compared.gone)) : null,
    h("p", {}, h("a", { href: "#tests" }, "all tests of the later report")),
  ];
}
