// One test, and one cause.
function windowsTable(test, data) {
  const rows = [...test.w, ...test.all];
  if (!rows.length) return null;
  const reserved = rows.some((w) => w[5] !== null);
  const several = new Set(rows.map((w) => w[1])).size > 1;
  const most = Math.max(1, ...rows.map((w) => (w[3] === null || w[2] === null ? 0 : w[3] - w[2])));
  const heads = ["window", several && "device", "start", "peak", "end", "above start", reserved && "reserved", "retained", "allocations"].filter(Boolean);
  const regions = rows.filter((w) => !PHASES.includes(w[0]));
  const later = new Set(regions.slice(8));
  const rowOf = (w) => {
    const [name, device, start, peak, end, reservedPeak, retained, allocations, , complete, notes] = w;
    const growth = peak === null || start === null ? null : peak - start;
    return h("tr", {}, h("th", { scope: "row" }, name === "test" ? "whole test" : elide(name, 60), complete ? "" : pill("warn", "in part"),
      notes ? h("div.muted", {}, elide(notes.join("; "), 300)) : ""),
    several ? h("td.device", {}, typeof device === "number" ? data.devices[device] : device) : null,
    [start, peak, end].map((size) => h("td.num", {}, bytes(size))),
    h("td.num", {}, growth === null ? "unknown" : bytes(growth), h("span.bar", { "aria-hidden": "true" }, h("span.fill", { style: { width: `${(100 * Math.max(0, growth || 0)) / most}%` } }))),
    reserved ? h("td.num", {}, bytes(reservedPeak)) : null,
    h("td.num", {}, retained === null ? "unknown" : bytes(retained)), h("td.num", {}, allocations === null ? "?" : number(allocations)));
  };
  const body = h("tbody", {}, rows.filter((w) => !later.has(w)).map(rowOf));
  const more = later.size && h("button.link", { type: "button", on: { click: () => { body.replaceChildren(...rows.slice(0, 2000).map(rowOf)); more.remove(); } } }, count(later.size, "more region"));
  return h("div.wide", { tabindex: "0", role: "region", "aria-label": "windows" }, h("table.plain", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h(["window", "device"].includes(head) ? "th" : "th.num", { scope: "col" }, head)))), body), more || "");
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'"'"'`)}'`);

function measuredTable(test) {
  const some = (test.m || []).filter(([, , values]) => Object.keys(values).length);
  if (!some.length) return null;
  return h("details", {}, h("summary", {}, "numbers for a baseline"), some.map(([device, environment, values]) => h("div", {},
    h("p.muted", {}, `${device}: ${environment}`),
    h("dl.numbers", {}, Object.entries(values).map(([metric, both]) => [h("dt", {}, metric), h("dd", {}, range(metric, both))])))));
}

// Each number beside the recorded one, for every test that was compared.
function baselineTable(test) {
  const some = (test.m || []).filter(([, , , recorded]) => recorded);
  if (!some.length) return null;
  const row = (device, metric, before, after) => {
    const growth = after ? growthOf(before, after) : null;
    return h("tr", {}, h("th", { scope: "row" }, metric), h("td.device", {}, device), h("td.num", {}, range(metric, before)),
      h("td.num", {}, after ? range(metric, after) : "unknown"),
      h("td.num", {}, growth === null ? "unknown" : growth === 0 ? h("span.muted", {}, "none") : h(growth > 0 ? "span.worse" : "span.better", {}, signed(growth, (value) => metricText(metric, value)),
        before[1] ? ` (${signed(growth / before[1], percent)})` : "")));
  };
  return h("section", {}, h("h2", {}, "Against its baseline"), h("div.wide", { tabindex: "0", role: "region", "aria-label": "numbers beside the recorded ones" }, h("table.plain", {},
    h("thead", {}, h("tr", {}, ["metric", "device", "recorded", "now", "change"].map((head, i) => h(i < 2 ? "th" : "th.num", { scope: "col" }, head)))),
    h("tbody", {}, some.flatMap(([device, , values, recorded]) => Object.entries(recorded).map(([metric, before]) => row(device, metric, before, values[metric])))))));
}

function testPage(data, rows, id) {
  const attempts = rows.filter((row) => row.test.id === id);
  if (!attempts.length) return missing(`There is no test ${elide(id, 200)} in this report.`);
  const last = attempts[attempts.length - 1];
  const order = rows.indexOf(last);
  const near = (step) => {
    const other = rows[order + step];
    return other ? h("a", { href: link("test", other.test.id), title: elide(other.test.id, 300) }, step < 0 ? "← previous" : "next →") : h("span.muted", {}, step < 0 ? "← previous" : "next →");
  };
  return [
    h("nav.crumbs", { "aria-label": "where this is" }, h("a", { href: "#" }, "all tests"), h("span.steps", {}, near(-1), " ", near(1))),
    h("section.title", {}, h("h2.code", {}, elide(id, 2000)), h("p", {}, pill(OUTCOMES[last.outcome] || "calm", last.outcome),
      last.peak === null ? "" : h("span", {}, `peak ${bytes(last.peak)} above start`), last.used === null ? "" : h("span", {}, `${percent(last.used)} of its budget`)),
    copyable(`pytest ${quoted(id)}${data.flags ? ` ${data.flags}` : ""}`, "command that runs this test once more")),
    attempts.map((row) => [attempts.length > 1 ? h("h2", {}, `Attempt ${row.test.a || 1}`) : null, attemptOf(data, row)]),
  ];
}

// The memory over time of the same test in the earlier of two runs.
const earlierOf = (data, place, curve) => (data.curves[`before ${place}`] || []).find((one) => one.device === curve.device && one.by === curve.by);

function attemptOf(data, row) {
  const { test, found } = row;
  const curves = data.curves[row.place] || [];
  const severe = [...found].sort((a, b) => "fwn".indexOf(a.s[0]) - "fwn".indexOf(b.s[0]));
  const limit = found.map((one) => one.limit).find((one) => one && one[0] === "peak");
  const texts = data.expected.filter(([name]) => name === test.id);
  const several = new Set(curves.map((curve) => curve.device)).size > 1;
  return [
    severe.length ? h("section", {}, h("h2", {}, "Findings"), severe.map((one) => findingCard(one, data, false))) : null,
    curves.map((curve) => h("section", {}, h("h2", {}, `Memory over time, by ${curve.by === "line" ? "line of code" : "category"}${several ? ` (${curve.device})` : ""}`),
      curveChart(curve, curve.by === "line" ? limit : null, 0, earlierOf(data, row.place, curve)))),
    curves.filter((curve) => curve.live.length).map((curve) => h("section", {}, h("h2", {}, `Live at the peak, by stack${several ? ` (${curve.device})` : ""}`), icicle(curve, data.frames, data.stacks))),
    curves.length ? null : h("section", {}, h("h2", {}, "Memory over time"), h("p.muted", {}, test.w.length
      ? "Recorded for tests that fail and for the largest ones; of this test there are its windows." : "This test was not measured.")),
    texts.length ? h("section", {}, h("h2", {}, "Expected text"), texts.map(([, device, place, wanted, actual]) => [
      h("p.muted", {}, `${place}${device ? ` (${device})` : ""}: − expected, + found`), difference(wanted ?? "", actual)])) : null,
    (test.exhibits || []).map(([title_, text]) => h("section", {}, h("h2", {}, title_), h("pre.exhibit", { tabindex: "0", role: "group", "aria-label": title_ }, text))),
    baselineTable(test),
    h("section", {}, h("h2", {}, "Windows"), windowsTable(test, data) || h("p.muted", {}, "none"), measuredTable(test)),
    linesSection("Notes", [...(test.notes || []), ...(test.unjudged ? [`not all was looked at: ${test.unjudged.join(", ")}`] : [])], "calm"),
  ];
}

function causePage(data, rows, key) {
  const place = data.causes.findIndex((cause) => cause.key === key);
  if (place < 0) return missing("There is no such cause in this report.");
  const cause = data.causes[place];
  const found = data.findings.filter((one) => one.c === place);
  const most = Math.max(1, ...found.map((one) => one.b || 0));
  const listed = found.slice(0, 200);
  return [
    h("nav.crumbs", { "aria-label": "where this is" }, h("a", { href: "#" }, "all tests")),
    h("section.title", {}, h("h2.code", {}, elide(cause.text, 2000)), h("p", {}, findingPill(cause), h("span", {}, bytes(cause.b)), h("span", {}, `in ${count(cause.findings, "finding")}`), h("span", {}, `on ${cause.device}`)),
      cause.tests.length ? h("p", {}, "first seen in ", h("a.code", { href: link("test", cause.tests[0]) }, elide(cause.tests[0], 200))) : null),
    found.length ? h("section", {}, h("h2", {}, "One of the largest"), findingCard(found.reduce((a, b) => ((b.b || 0) > (a.b || 0) ? b : a)), data, true)) : null,
    h("section", {}, h("h2", {}, cause.tests.length ? count(cause.tests.length, "test") : "The run itself"),
      h("table.plain", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "test"), h("th.num", { scope: "col" }, "size"))), h("tbody", {}, listed.map((one) => h("tr", {},
        h("th.code", { scope: "row" }, one.n === undefined ? "the run itself" : h("a", { href: link("test", data.tests[one.n].id) }, elide(data.tests[one.n].id, 200))),
        h("td.num", {}, one.b === undefined ? "?" : bytes(one.b), h("span.bar", { "aria-hidden": "true" }, h("span.fill", { style: { width: `${(100 * (one.b || 0)) / most}%` } }))))))),
      found.length > 200 ? h("p.muted", {}, `${number(found.length - 200)} more`) : null),
    h("section", {}, h("h2", {}, "To record it as known"), h("p.muted", {}, "Add this line to __cudamem__/known.jsonl, with a reason:"), copyable(cause.known, "line for the file of known findings")),
  ];
}

const missing = (words) => h("section", {}, h("p", {}, words), h("p", {}, h("a", { href: "#" }, "all tests")));
