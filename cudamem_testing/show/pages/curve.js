// Memory over time: bands stacked upon each other, drawn in steps, as memory is taken and given.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8b7fd4", "#b5a700", "#5c8d5a", "#a0522d"];
const CATEGORIES = {
  PARAMETER: "#0072b2", OPTIMIZER_STATE: "#56b4e9", GRADIENT: "#009e73", INPUT: "#e3d32e", ACTIVATION: "#e69f00",
  AUTOGRAD_DETAIL: "#d55e00", TEMPORARY: "#cc79a7", unknown: "#a7adb5",
};
const TAIL = 0.02; // the last level is drawn a little beyond its event, or it would have no width
const PHASES = ["setup", "call", "teardown", "warm-up", "test"];

// Bands from the bottom up: what was there before, the lines from the largest on, then the rest.
function bandsOf(curve) {
  const order = { before: 0, stackless: 2, rest: 3, rounding: 4 };
  const points = curve.moments.length;
  const bands = curve.bands.map((band) => {
    const sizes = new Float64Array(points);
    for (let i = 0; i < band.steps.length; i += 2) sizes.fill(band.steps[i + 1], band.steps[i]);
    return { label: band.label, origin: band.origin, sizes, most: sizes.reduce((a, b) => Math.max(a, b), 0) };
  });
  bands.sort((a, b) => (order[a.origin] ?? 1) - (order[b.origin] ?? 1));
  let place = 0;
  for (const band of bands) {
    band.colour = { before: "var(--before)", rest: "var(--rest)", rounding: "var(--rest)", stackless: "var(--bar-before)" }[band.origin]
      || (band.origin === "category" ? CATEGORIES[band.label] : null) || COLOURS[place++ % COLOURS.length];
  }
  return bands;
}

function totalsOf(bands, points) {
  const totals = new Float64Array(points);
  for (const band of bands) for (let i = 0; i < points; i += 1) totals[i] += band.sizes[i];
  return totals;
}

// Where the points of an earlier run lie among the values of a later one: phases and regions begin and end together.
function aligned(earlier, later, from, to) {
  const nth = (curve) => {
    const seen = new Map();
    return new Map(curve.stretches.map(([name, first, last]) => {
      seen.set(name, (seen.get(name) || 0) + 1);
      return [`${name} ${seen.get(name)}`, [first, last]];
    }));
  };
  const there = nth(later);
  const pairs = [[0, 0]];
  for (const [name, ends] of nth(earlier)) if (there.has(name)) ends.forEach((place, i) => pairs.push([from[place], to[there.get(name)[i]]]));
  pairs.push([from[from.length - 1], to[to.length - 1]]);
  pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const kept = [pairs[0]];
  for (const pair of pairs) if (pair[0] > kept[kept.length - 1][0] && pair[1] >= kept[kept.length - 1][1]) kept.push(pair);
  let k = 0;
  return from.map((value) => {
    while (k < kept.length - 2 && kept[k + 1][0] <= value) k += 1;
    const [[a, x], [b, y]] = kept.length > 1 ? [kept[k], kept[k + 1]] : [kept[0], [kept[0][0] + 1, kept[0][1]]];
    return x + ((y - x) * (value - a)) / (b - a);
  });
}

// Bytes of the same line in the other run: by its label, or where lines were added above it by file and function.
function sameBand(bands, label) {
  const place = (text) => text.replace(/:\d+ in /, " in ");
  const exact = bands.find((band) => band.label === label);
  const alike = exact ? [] : bands.filter((band) => place(band.label) === place(label));
  return exact || (alike.length === 1 ? alike[0] : null);
}

// `earlier` is the same test's curve of a run before: a line over the bands, and a number beside each.
function curveChart(curve, limit, most, earlier) {
  const bands = bandsOf(curve);
  const points = curve.moments.length;
  const totals = totalsOf(bands, points);
  const before = earlier && earlier.moments.length ? { bands: bandsOf(earlier), totals: totalsOf(bandsOf(earlier), earlier.moments.length) } : null;
  const bound = limit && limit[0] === "peak" ? limit[4] + limit[2] : null;
  const highest = Math.max(1, most || 0, bound === null ? 0 : bound, ...totals, ...(before ? before.totals : []));
  const clock = curve.times !== null && curve.times[points - 1] > 0;
  let byTime = false; // most of the time nothing is allocated: by event every change can be seen
  let at = curve.peak;
  let lit = null;

  const plot = h("div.plot");
  const readout = h("div.readout", { "aria-hidden": "true", style: { "min-height": `${3.1 + 1.5 * Math.min(12, bands.filter((band) => band.most).length)}rem` } });
  const scale = (width) => {
    const values = byTime ? curve.times : curve.moments;
    const last = (values[points - 1] || 1) * (1 + TAIL) + (byTime ? 0 : 0.5);
    return { last, at: (value) => 64 + ((width - 76) * value) / last };
  };
  const xs = (width) => {
    const { last, at: to } = scale(width);
    const values = byTime ? curve.times : curve.moments;
    return (place) => to(place < points ? values[place] : last);
  };
  const beforeValues = () => {
    const times = byTime && earlier.times !== null;
    return aligned(earlier, curve, times ? earlier.times : earlier.moments, byTime ? curve.times : curve.moments);
  };
  // The place in the earlier run that is drawn at a place of this one.
  const placeBefore = (place) => {
    const value = (byTime ? curve.times : curve.moments)[place];
    const values = beforeValues();
    let found = 0;
    while (found < values.length - 1 && values[found + 1] <= value) found += 1;
    return found;
  };
  const phaseAt = (place) => {
    const here = curve.stretches.filter(([, first, last]) => first <= place && place <= last).map(([name]) => name);
    return [here.find((name) => PHASES.includes(name)), here.find((name) => !PHASES.includes(name))].filter(Boolean);
  };
  const where = (place) => {
    const event = `event ${number(curve.moments[place])} of ${number(curve.events)}`;
    return clock ? `${event}, ${duration(curve.times[place])}` : event;
  };

  function show(place, focus) {
    at = Math.max(0, Math.min(points - 1, place));
    const live = bands.filter((band) => band.sizes[at] > 0).reverse();
    const then = before ? placeBefore(at) : null;
    const was = (band) => {
      const other = sameBand(before.bands, band.label);
      return other ? other.sizes[then] : 0;
    };
    const change = before ? totals[at] - before.totals[then] : 0;
    const gone = before ? before.bands.filter((band) => band.sizes[then] > 0 && !live.includes(sameBand(bands, band.label))).reverse() : [];
    const told = before ? `, before ${bytes(before.totals[then])}${change ? ` (${signed(change)})` : ""}` : "";
    const row = (band, now, old) => h(band === lit ? "tr.lit" : "tr", {},
      h("td", {}, h("i.swatch", { style: { background: band.colour } })), h("td.num", {}, now),
      before ? h("td.num.muted", {}, old) : null, h("td.code", {}, elide(band.label, 90)));
    readout.replaceChildren(
      h("p", {}, h("b", {}, bytes(totals[at])), told, " ", h("span.muted", {}, where(at)), " ",
        phaseAt(at).map((name, i) => h(`span.where.${i ? "region" : "phase"}`, {}, elide(name, 60)))),
      h("table", {}, live.slice(0, 12).map((band) => row(band, bytes(band.sizes[at]), before ? `was ${bytes(was(band))}` : "")),
        gone.slice(0, 4).map((band) => row({ ...band, colour: "transparent" }, "0 B", `was ${bytes(band.sizes[then])}`))));
    if (focus) say(`${bytes(totals[at])}${told} at ${where(at)}; ${live.slice(0, 3).map((b) => `${bytes(b.sizes[at])} ${b.label}`).join(", ")}`);
    const cursor = plot.querySelector(".cursor");
    if (cursor) {
      const x = xs(plot.clientWidth)(at);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
      cursor.classList.add("shown");
    }
  }

  function draw(width) {
    const height = width < 520 ? 250 : 320;
    const top = 46;
    const bottom = height - 26;
    const x = xs(width);
    const y = (size) => bottom - ((bottom - top) * size) / (highest * 1.04);
    const picture = s("svg", {
      width, height, role: "img", tabindex: "0",
      "aria-label": `Memory over time, ${curve.by === "line" ? "by line of code" : "by category"}: peak ${bytes(totals[curve.peak])}${before ? `, in the earlier run ${bytes(before.totals[earlier.peak])}` : ""}. Arrow keys move along it.`,
    });
    for (const value of ticks(highest)) {
      picture.append(s("line.grid", { x1: 64, x2: width - 12, y1: y(value), y2: y(value) }),
        s("text.axis", { x: 58, y: y(value) + 4, "text-anchor": "end" }, tick(value)));
    }
    // Phases fill the upper row, regions inside them the lower one; names that have no room are left to the pointer.
    curve.stretches.forEach(([name, first, last], i) => {
      const phase = PHASES.includes(name);
      const [x1, x2] = [x(first), x(last === points - 1 && phase ? points : last)];
      if (x2 - x1 < 0.5) return;
      const row = phase ? 4 : 24;
      picture.append(
        s(phase ? "rect.phase" : "rect.region", { x: x1, y: row, width: Math.max(1, x2 - x1 - 1), height: 18, rx: 2 }, s("title", {}, name)),
        phase ? s("line.border", { x1: x2, x2, y1: row, y2: bottom }) : "");
      if (x2 - x1 > 7 * Math.min(name.length, 12) + 8) {
        const label = elide(name, Math.max(4, Math.floor((x2 - x1 - 8) / 7)));
        picture.append(s("text.stretch", { x: (x1 + x2) / 2, y: row + 13, "text-anchor": "middle" }, label));
      }
    });
    const base = new Float64Array(points);
    for (const band of bands) {
      let upper = "";
      let lower = "";
      for (let i = 0; i < points; i += 1) {
        const above = y(base[i] + band.sizes[i]).toFixed(1);
        const here = x(i).toFixed(1);
        const next = x(i + 1).toFixed(1);
        upper += `${i ? "L" : "M"}${here} ${above}L${next} ${above}`;
        lower = `L${next} ${y(base[i]).toFixed(1)}L${here} ${y(base[i]).toFixed(1)}` + lower;
      }
      picture.append(s(lit && lit !== band ? "path.band.dim" : "path.band", { d: `${upper}${lower}Z`, style: { fill: band.colour } }));
      for (let i = 0; i < points; i += 1) base[i] += band.sizes[i];
    }
    if (before) {
      const { at: to } = scale(width);
      const values = beforeValues();
      let line = "";
      values.forEach((value, i) => {
        const here = y(before.totals[i]).toFixed(1);
        const next = i + 1 < values.length ? to(values[i + 1]) : x(points);
        line += `${i ? "L" : "M"}${to(value).toFixed(1)} ${here}L${next.toFixed(1)} ${here}`;
      });
      picture.append(s("path.earlier.under", { d: line }), s("path.earlier", { d: line }));
    }
    if (bound !== null) {
      picture.append(s("line.bound", { x1: 64, x2: width - 12, y1: y(bound), y2: y(bound) }),
        s("text.bound", { x: width - 14, y: y(bound) - 5, "text-anchor": "end" }, `budget ${bytes(limit[2])}${limit[4] ? " above start" : ""}`));
    }
    const px = x(curve.peak);
    const left = px > width - 170;
    picture.append(
      s("line.cursor", { x1: px, x2: px, y1: top, y2: bottom }),
      s("circle.peak", { cx: px, cy: y(totals[curve.peak]), r: 4 }),
      s("text.peak", { x: px + (left ? -8 : 8), y: Math.max(y(totals[curve.peak]) - 6, top + 2), "text-anchor": left ? "end" : "start" }, `peak ${bytes(totals[curve.peak])}`),
      s("line.axis", { x1: 64, x2: width - 12, y1: bottom, y2: bottom }));
    const last = byTime ? curve.times[points - 1] : curve.events;
    const right = x(points - 1);
    const names = !byTime && last < 8 ? [0, 1] : width < 520 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
    for (const share of names) {
      const words = byTime ? duration(last * share) : `${share === 1 ? "event " : ""}${number(Math.round(last * share))}`;
      picture.append(s("text.axis", { x: 64 + (right - 64) * share, y: height - 8, "text-anchor": share === 1 ? "end" : share ? "middle" : "start" }, words));
    }
    const nearest = (event) => {
      const box = picture.getBoundingClientRect();
      const pointer = event.clientX - box.left;
      let low = 0;
      let high = points - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (x(middle) <= pointer) low = middle;
        else high = middle - 1;
      }
      const wanted = (bottom - (event.clientY - box.top)) * (highest * 1.04) / (bottom - top);
      let sum = 0;
      lit = bands.find((band) => (sum += band.sizes[low]) >= wanted && wanted >= 0) || null;
      return low;
    };
    picture.addEventListener("pointermove", (event) => show(nearest(event)));
    picture.addEventListener("pointerleave", () => { lit = null; show(curve.peak); });
    picture.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + 20, PageUp: at - 20, Home: 0, End: points - 1, p: curve.peak };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key], true);
    });
    const focused = plot.contains(document.activeElement);
    plot.replaceChildren(picture);
    if (focused) picture.focus();
    show(at);
  }

  const legend = h("ul.legend", {}, bands.filter((band) => band.most).reverse().map((band) =>
    h("li", {}, h("button", { type: "button", "aria-pressed": "false", on: { click: (event) => {
      lit = lit === band ? null : band;
      for (const one of legend.querySelectorAll("button")) one.setAttribute("aria-pressed", String(lit === band && one === event.currentTarget));
      draw(plot.clientWidth);
    } } }, h("i.swatch", { style: { background: band.colour } }), h("span.code", {}, elide(band.label, 90)), " ", h("span.muted", {}, bytes(band.most))))));
  const modes = clock && h("div.modes", { role: "group", "aria-label": "what runs from left to right" },
    [["by event", false], ["by time", true]].map(([words, value]) =>
      h("button", { type: "button", "aria-pressed": String(value === byTime), on: { click: (event) => {
        byTime = value;
        for (const one of event.currentTarget.parentNode.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
        draw(plot.clientWidth);
      } } }, words)));
  if (before) {
    legend.append(h("li.earlier", {}, h("i.line", { "aria-hidden": "true" }), `earlier run: peak ${bytes(before.totals[earlier.peak])}, `,
      "its phases and regions begin and end where those of this run do"));
  }
  drawn(plot, draw);
  return h("div.curve", {}, modes, plot, readout, legend, curve.notes.map((note) => h("p.note", {}, note)));
}
