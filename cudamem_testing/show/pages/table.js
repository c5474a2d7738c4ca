// A table of any length: only the rows in sight are in the page, the others are two empty rows as high as they are.
const AHEAD = 8;

// On a phone only the columns to keep are shown.
const kindOf = (column) => `${column.heads ? "name" : column.kind || "text"}${column.keep || column.heads ? ".keep" : ""}`;

function bigTable({ caption, columns, rows, cells, order, height = 36, most = 640 }) {
  let shown = rows;
  let sorted = order;
  const head = h("tr", {}, columns.map((column, place) => h(`th.${kindOf(column)}`, { scope: "col", "aria-sort": "none" },
    column.value ? h("button", { type: "button", on: { click: () => sort(place) } }, column.title, h("span.arrow", { "aria-hidden": "true" })) : column.title)));
  const body = h("tbody");
  const table = h("table.big", { "aria-rowcount": String(rows.length + 1) }, h("caption.hidden", {}, caption), h("thead", {}, head), body);
  const box = h("div.rows", { tabindex: "0", role: "region", "aria-label": caption, style: { "max-height": `${most}px` } }, table);
  let first = -1;
  let last = -1;
  let everything = false;

  const spacer = (size) => h("tr.spacer", { "aria-hidden": "true" }, h("td", { style: { height: `${size}px` } })); // of one cell: more would be columns, where some are hidden

  function draw(force) {
    const from = everything ? 0 : Math.max(0, Math.floor(box.scrollTop / height) - AHEAD);
    const until = everything ? shown.length : Math.min(shown.length, Math.ceil((box.scrollTop + (box.clientHeight || most)) / height) + AHEAD);
    if (!force && from === first && until === last) return;
    [first, last] = [from, until];
    const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const made = [];
    if (from) made.push(spacer(from * height));
    for (let i = from; i < until; i += 1) {
      const row = h("tr", { "aria-rowindex": String(i + 2) }, cells(shown[i]).map((content, place) =>
        place === columns.findIndex((column) => column.heads) ? h("th.name.keep", { scope: "row" }, content) : h(`td.${kindOf(columns[place])}`, {}, content)));
      row.className = shown[i].tone || "";
      made.push(row);
    }
    if (until < shown.length) made.push(spacer((shown.length - until) * height));
    if (!shown.length) made.push(h("tr", {}, h("td.none", { colspan: columns.filter((one) => one.keep || one.heads || innerWidth > 720).length }, "nothing fits the filter")));
    body.replaceChildren(...made);
    if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function arrange() {
    const [place, down] = sorted;
    const value = columns[place].value;
    const sign = down ? -1 : 1;
    const text = typeof value(rows[0] || {}) === "string";
    const empty = (one) => one === null || one === undefined;
    shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (empty(x) || empty(y)) return empty(x) - empty(y) || a.place - b.place;
      return sign * (text ? (x < y ? -1 : x > y ? 1 : 0) : x - y) || (b.peak ?? 0) - (a.peak ?? 0) || a.place - b.place;
    });
    [...head.children].forEach((cell, i) => cell.setAttribute("aria-sort", i === place ? (down ? "descending" : "ascending") : "none"));
    draw(true);
  }

  function sort(place) {
    sorted = [place, sorted[0] === place ? !sorted[1] : columns[place].kind === "num"];
    arrange();
    say(`sorted by ${columns[place].title}, ${sorted[1] ? "largest first" : "smallest first"}`);
  }

  box.addEventListener("scroll", () => draw(false), { passive: true });
  box.addEventListener("keydown", (event) => {
    const links = [...body.querySelectorAll("th.name a")];
    const here = links.indexOf(document.activeElement);
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || (here < 0 && event.target !== box)) return;
    event.preventDefault();
    const next = links[here < 0 ? 0 : here + by];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.closest("tr").scrollIntoView({ block: "nearest" });
    draw(false);
  });
  addEventListener("beforeprint", () => { everything = true; draw(true); });
  addEventListener("afterprint", () => { everything = false; draw(true); });
  requestAnimationFrame(() => draw(true));
  new ResizeObserver(() => draw(false)).observe(box);
  arrange();
  return {
    element: box,
    filter(keep) {
      shown = rows.filter(keep);
      table.setAttribute("aria-rowcount", String(shown.length + 1));
      box.scrollTop = 0;
      arrange();
      return shown.length;
    },
  };
}
