// The overview: the verdict, findings by cause, every test in one table, what the process still holds.
const OUTCOMES = { passed: "good", failed: "bad", error: "bad", xfailed: "calm", xpassed: "warn", skipped: "calm", rerun: "calm" };
const MARKS = { passed: "✓", failed: "✗", error: "✗", xfailed: "✗", xpassed: "✓", skipped: "–", rerun: "↻" };
const STATES = { failed: ["bad", "✗"], partly: ["warn", "!"], passed: ["good", "✓"], nothing: ["calm", "–"] };

// How far a number is above the highest recorded one, or below the lowest: 0 between them.
const growthOf = (before, after) => (after[1] > before[1] ? after[1] - before[1] : Math.min(0, after[0] - before[0]));

// Of all sizes compared with a baseline the one that changed most: [metric, growth, share of what is recorded].
function changeAgainstBaseline(test, found) {
  const pairs = (test.m || []).flatMap(([, , values, recorded]) => Object.entries(recorded || {}).map(([metric, before]) => [metric, before, values[metric]]));
  for (const one of found) if (one.change) pairs.push(one.change);
  const all = pairs.filter(([metric, , after]) => isSize(metric) && after).map(([metric, before, after]) => {
    const growth = growthOf(before, after);
    const base = growth > 0 ? before[1] : before[0];
    return [metric, growth, growth === 0 ? 0 : base ? growth / base : Infinity];
  });
  return all.reduce((a, b) => (a === null || Math.abs(b[1]) > Math.abs(a[1]) ? b : a), null);
}

// What the table shows of a test; made once.
function rowsOf(data) {
  const found = data.tests.map(() => []);
  for (const one of data.findings) if (one.n !== undefined) found[one.n].push(one);
  return data.tests.map((test, place) => {
    const calls = test.w.filter((w) => w[0] === "call" && typeof w[1] === "number");
    const growth = calls.map((w) => (w[3] === null || w[2] === null ? null : w[3] - w[2]));
    const best = growth.reduce((a, b, i) => (b !== null && (a < 0 || b > growth[a]) ? i : a), -1);
    const serious = found[place].filter((one) => one.s !== "note");
    const change = changeAgainstBaseline(test, found[place]);
    return {
      test, place, found: found[place], serious,
      name: test.id, outcome: test.o, peak: best < 0 ? null : growth[best],
      device: best < 0 ? (calls.length ? data.devices[calls[0][1]] : "") : data.devices[calls[best][1]],
      retained: test.all.reduce((sum, w) => (w[6] === null ? sum : (sum ?? 0) + w[6]), null),
      used: test.used ?? null, change, share: change && change[2],
      rank: serious.some((one) => one.s === "fail") ? 0 : OUTCOMES[test.o] === "bad" ? 1 : serious.length ? 2 : 3,
      text: `${test.id} ${test.o} ${serious.map((one) => `${one.k} ${one.v}`).join(" ")}`.toLowerCase(),
      tone: OUTCOMES[test.o] === "bad" ? "bad" : serious.length ? "warn" : "",
    };
  });
}

function nameOf(id) {
  const at = id.indexOf("::");
  const [file, name] = at < 0 ? ["", id] : [id.slice(0, at), id.slice(at + 2)];
  return [h("span.test-name", {}, elide(name, 240)), file ? h("span.file", {}, elide(file, 160)) : ""];
}

function testTable(data, rows) {
  const most = Math.max(1, ...rows.map((row) => row.peak || 0));
  const several = data.devices.length > 1;
  const budgets = rows.some((row) => row.used !== null);
  const changes = rows.some((row) => row.share !== null);
  const widest = Math.min(1, Math.max(0.01, ...rows.map((row) => Math.abs(row.share || 0)))); // of a bar of changes
  const bar = (share, kind) => h("span.bar", { "aria-hidden": "true" }, h(`span.${kind}`, { style: { width: `${Math.min(100, 100 * share)}%` } }));
  const all = [
    { title: "outcome", kind: "outcome", keep: true, value: (row) => row.rank, cell: (row) => pill(OUTCOMES[row.outcome] || "calm", [h("span", { "aria-hidden": "true" }, MARKS[row.outcome] || "?"), h("span.word", {}, ` ${row.outcome}`)]) },
    { title: "test", heads: true, value: (row) => row.name, cell: (row) => h("a", { href: link("test", row.test.id), title: elide(row.name, 600) }, nameOf(row.name)) },
    { title: "findings", kind: "text", value: (row) => row.serious.map((one) => one.k).join(" ") || null, cell: (row) => [...new Map(row.serious.map((one) => [one.k, one])).values()].slice(0, 2).map((one) => pill(TONES[one.s], one.k)) },
    { title: "peak", kind: "num", keep: true, value: (row) => row.peak, cell: (row) => row.peak === null ? h("span.muted", {}, "?") : [bytes(row.peak), bar(row.peak / most, "fill")] },
    budgets && { title: "budget", kind: "num", value: (row) => row.used, cell: (row) => row.used === null ? "" : [percent(row.used), bar(row.used, row.used > 1 ? "fill bad" : "fill")] },
    changes && { title: "change", kind: "num", value: (row) => row.share, cell: (row) => row.share === null ? "" : row.share === 0 ? h("span.muted", {}, "±0 %") : [
      h(row.share > 0 ? "span.worse" : "span.better", { title: `${row.change[0]} ${signed(row.change[1])}` }, Number.isFinite(row.share) ? signed(row.share, percent) : signed(row.change[1])),
      middleBar(row.share, widest)] },
    { title: "retained", kind: "num", value: (row) => row.retained, cell: (row) => row.retained === null ? h("span.muted", {}, "?") : row.retained ? bytes(row.retained) : h("span.muted", {}, "0 B") },
    several && { title: "device", kind: "text", value: (row) => row.device, cell: (row) => row.device },
  ].filter(Boolean);
  return bigTable({ caption: "list of tests", columns: all, rows: [...rows], order: [0, false], cells: (row) => all.map((column) => column.cell(row)) });
}

const FILTERS = [
  ["all", () => true],
  ["failed", (row) => OUTCOMES[row.outcome] === "bad"],
  ["memory findings", (row) => row.serious.length > 0],
  ["budget", (row) => row.serious.some((one) => one.k === "budget")],
  ["leak", (row) => row.serious.some((one) => one.k === "leak")],
  ["cycle", (row) => row.serious.some((one) => one.k === "cycle")],
  ["baseline", (row) => row.serious.some((one) => one.k === "baseline")],
  ["changed", (row) => Boolean(row.share)],
  ["out of memory", (row) => row.serious.some((one) => one.k === "oom")],
  ["passed", (row) => row.outcome === "passed"],
  ["over time", (row, data) => String(row.place) in data.curves],
  ["not measured", (row) => !row.test.w.length],
];

function testsSection(data, rows) {
  const table = testTable(data, rows);
  let [chosen, words, device] = ["all", "", ""];
  const shown = h("p.muted", { role: "status" });
  const apply = () => {
    const keep = FILTERS.find(([name]) => name === chosen)[1];
    const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
    const number_ = table.filter((row) => keep(row, data) && (!device || row.device === device) && parts.every((part) => row.text.includes(part)));
    shown.textContent = number_ === rows.length ? count(rows.length, "test") : `${number(number_)} of ${count(rows.length, "test")}`;
  };
  const search = h("input", { type: "search", id: "search", placeholder: "search tests", "aria-label": "search tests by name, outcome or finding", autocomplete: "off",
    on: { input: () => { words = search.value; apply(); } } });
  const there = FILTERS.filter(([name, keep], i) => i === 0 || rows.some((row) => keep(row, data)));
  const chips = h("div.chips", { role: "group", "aria-label": "which tests" }, there.map(([name, keep]) =>
    h("button", { type: "button", "aria-pressed": String(name === "all"), on: { click: (event) => {
      chosen = name;
      for (const one of chips.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      apply();
    } } }, `${name} `, h("span.muted", {}, number(rows.filter((row) => keep(row, data)).length)))));
  const devices = data.devices.length > 1 && h("select", { "aria-label": "device", on: { change: (event) => { device = event.target.value; apply(); } } },
    h("option", { value: "" }, "all devices"), data.devices.map((one) => h("option", { value: one }, one)));
  apply();
  return h("section", { "aria-labelledby": "tests-title" }, h("h2", { id: "tests-title" }, "Tests"),
    h("div.tools", {}, search, devices, shown), chips, table.element);
}

function causesSection(data) {
  const open = data.causes.map((cause, place) => ({ cause, place })).filter(({ cause }) => cause.s !== "note");
  const known = data.causes.filter((cause) => cause.st === "known");
  const single = data.findings.filter((one) => one.c === undefined && one.s !== "note");
  if (!open.length && !single.length && !known.length) return null;
  const row = ({ cause }) => h(`li.${TONES[cause.s]}`, {}, h("a.item", { href: link("cause", cause.key) },
    h("span.size", {}, bytes(cause.b)),
    h("span.what", {}, findingPill(cause), cause.st ? pill("calm", cause.st) : "", h("span.code", {}, elide(cause.text, 220))),
    h("span.muted", {}, cause.tests.length ? count(cause.tests.length, "test") : "the run itself")));
  const one = (finding) => h(`li.${TONES[finding.s]}`, {}, h("a.item", { href: finding.n === undefined ? "#" : link("test", data.tests[finding.n].id) },
    h("span.size", {}, finding.b === undefined ? "" : bytes(finding.b)),
    h("span.what", {}, findingPill(finding), h("span", {}, elide(finding.t, 260)), h("span.muted.code.of", {}, finding.n === undefined ? "the run itself" : elide(data.tests[finding.n].id, 160)))));
  const list = (items, most) => {
    const shown = h("ul.items", {}, items.slice(0, most));
    if (items.length <= most) return shown;
    const more = h("button.link", { type: "button", on: { click: () => { shown.append(...items.slice(most)); more.remove(); } } }, `${number(items.length - most)} more`);
    return [shown, more];
  };
  return h("section", { "aria-labelledby": "findings-title" }, h("h2", { id: "findings-title" }, "Findings"),
    open.length ? [h("h3", {}, `by cause: ${number(open.length)}`), list(open.map(row), 8)] : null,
    single.length ? [h("h3", {}, `limits, baselines and errors: ${number(single.length)}`), list(single.map(one), 8)] : null,
    known.length ? h("details", {}, h("summary", {}, `known: ${count(known.length, "cause")}`), h("ul.items", {}, known.map((cause) => row({ cause })))) : null);
}

function ledgerSection(data) {
  if (!data.ledger.length) return null;
  const most = Math.max(1, ...data.ledger.map((one) => one[2]));
  return h("section", { "aria-labelledby": "ledger-title" }, h("h2", { id: "ledger-title" }, "Still held when the run ended"),
    h("table.plain", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "owner"), h("th.num", { scope: "col" }, "size"), h("th.num", { scope: "col" }, "blocks"), h("th", { scope: "col" }, "device"))),
      h("tbody", {}, [...data.ledger].sort((a, b) => b[2] - a[2]).slice(0, 100).map(([device, owner, size, blocks]) => h("tr", {},
        h("th.code", { scope: "row" }, elide(owner, 160)), h("td.num", {}, bytes(size), h("span.bar", { "aria-hidden": "true" }, h("span.fill", { style: { width: `${(100 * size) / most}%` } }))),
        h("td.num", {}, number(blocks)), h("td", {}, device))))),
    data.ledger.length > 100 ? h("p.muted", {}, `${number(data.ledger.length - 100)} more owners`) : null);
}

function linesSection(title, lines, tone) {
  return lines.length ? h(`section.lines.${tone}`, {}, h("h2", {}, title), h("ul", {}, lines.slice(0, 200).map((line) => h("li", {}, elide(line, 600))))) : null;
}

function summary(data, rows) {
  const peak = rows.reduce((a, b) => ((b.peak ?? -1) > (a?.peak ?? -1) ? b : a), null);
  const leaked = data.causes.filter((cause) => cause.k === "leak" && cause.s === "fail");
  const measured = rows.filter((row) => row.test.w.length).length;
  const tile = (value, words, target, tone) => h(target ? "a.tile" : "div.tile", { href: target }, h(`b${tone ? `.${tone}` : ""}`, {}, value), h("span", {}, words));
  return h("div.tiles", {},
    tile(number(measured), measured === rows.length ? "tests measured" : `of ${count(rows.length, "test")} measured`),
    peak && peak.peak !== null ? tile(bytes(peak.peak), "largest peak above start", link("test", peak.test.id)) : null,
    leaked.length ? tile(bytes(leaked.reduce((sum, cause) => sum + cause.b, 0)), `leaked, ${count(leaked.length, "cause")}`, leaked.length === 1 ? link("cause", leaked[0].key) : null, "bad") : null,
    data.unchecked.length ? tile(number(data.unchecked.length), data.unchecked.length === 1 ? "reason why something was not checked" : "reasons why something was not checked", null, "warn") : null,
    data.ledger.length ? tile(bytes(data.ledger.reduce((sum, one) => sum + one[2], 0)), "still held at the end") : null);
}

function overview(data, rows) {
  const [tone, mark] = STATES[data.state];
  const [devices, torch, allocator] = data.environment;
  return [
    h(`section.verdict.${tone}`, {}, h("span.mark", { "aria-hidden": "true" }, mark),
      h("div", {}, h("h2", {}, data.verdict),
        h("p.muted", {}, [devices.join(", ") || "no device", torch ? `torch ${torch}` : "", allocator && allocator !== "cpu" ? `allocator ${allocator}` : ""].filter(Boolean).join(" · ")))),
    summary(data, rows),
    linesSection("Failed beside its tests", data.failures, "bad"),
    linesSection("Not checked", data.unchecked, "warn"),
    causesSection(data),
    rows.length ? testsSection(data, rows) : h("p", {}, "No test was measured."),
    ledgerSection(data),
    linesSection("Notes", [...data.notes, ...(data.dropped ? [data.dropped] : [])], "calm"),
  ];
}
