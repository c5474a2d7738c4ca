// Which view is shown: by the fragment of the address, so that each has a link of its own.
const link = (kind, value) => `#${kind}=${encodeURIComponent(value)}`;

const data = JSON.parse(document.getElementById("data").textContent);
for (const key of ["curves"]) data[key] = data[key] || {};
const rows = rowsOf(data);
const view = document.getElementById("view");
const title = document.title;
let scroll = 0;

function target() {
  const text = location.hash.slice(1);
  const place = text.indexOf("=");
  let value = place < 0 ? "" : text.slice(place + 1);
  try {
    value = decodeURIComponent(value);
  } catch {
    // an address that was cut off: there is no such test
  }
  return [place < 0 ? text : text.slice(0, place), value];
}

let home = null; // the overview keeps its filter, its search and its place
function show() {
  const [kind, value] = target();
  const inner = kind === "test" || kind === "cause";
  if (inner) {
    if (home && view.contains(home)) scroll = document.documentElement.scrollTop;
    view.replaceChildren(h("div", {}, kind === "test" ? testPage(data, rows, value) : causePage(data, rows, value)));
    document.documentElement.scrollTop = 0;
    document.title = `${elide(value, 80)}: ${title}`;
  } else {
    const wanted = data.compared && kind !== "tests" ? "compared" : "overview";
    if (!home || home.dataset.view !== wanted) {
      home = h("div", { "data-view": wanted }, wanted === "compared" ? comparison(data) : overview(data, rows));
      scroll = 0;
    }
    view.replaceChildren(home);
    document.documentElement.scrollTop = scroll;
    document.title = title;
  }
  if (document.activeElement === document.body) view.focus({ preventScroll: true });
}

view.tabIndex = -1;
addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing) {
    const search = view.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "Escape" && !typing && ["test", "cause"].includes(target()[0])) {
    location.hash = "";
  }
});
show();
